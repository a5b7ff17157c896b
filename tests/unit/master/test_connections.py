"""Strangers at the endpoint's port: real sockets, and a server with few descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from hvd_elastic_keras.master.http import listening_port
from hvd_elastic_keras.master.http.server import MasterServer
from tests.harness.endpoint_process import (
    DESCRIPTORS,
    HEADER,
    LIMIT_S,
    QUESTION,
    EndpointProcess,
    status_of,
)

SHARE = DESCRIPTORS // listening_port.SHARE_OF_DESCRIPTORS


@pytest.fixture
def endpoint() -> Iterator[EndpointProcess]:
    with EndpointProcess() as process:
        yield process


def test_strangers_cannot_use_up_the_descriptors(endpoint: EndpointProcess) -> None:
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(endpoint.connect(QUESTION))
        assert status_of(worker) == 200
        strangers = [stack.enter_context(endpoint.connect()) for _ in range(3 * DESCRIPTORS)]
        assert status_of(stack.enter_context(endpoint.connect(QUESTION))) == 200
        worker.sendall(QUESTION)
        assert status_of(worker) == 200, "a connection that is known stays"
        assert status_of(strangers[0]) == 0, "the oldest goes first"
        strangers[-1].sendall(QUESTION)
        assert status_of(strangers[-1]) == 200, "the newest is open"
        assert endpoint.descriptors() < DESCRIPTORS - SHARE
    assert endpoint.errors_at_end() == ""


def test_without_descriptors_one_line_is_told_and_those_who_wait_are_served_later(
    endpoint: EndpointProcess,
) -> None:
    endpoint.tell("use up")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(endpoint.connect())
        asking = stack.enter_context(endpoint.connect(QUESTION))
        for _ in range(10):  # the server tries again all the time
            endpoint.tell("use up")
        endpoint.tell("give back")
        assert status_of(asking) == 200
    told = "no connection can be accepted at present: Too many open files\n"
    assert endpoint.errors_at_end() == told


GARBAGE = [
    os.urandom(300) + b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
    b"\r\n" * 1000,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /v1/status HTTP/1.1\r\nHost: \x00\r\n\r\n",
    b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"POST /v1/events HTTP/1.1\r\nContent-Length: -5\r\n" + HEADER + b"\r\nhello",
    b"POST /v1/events HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HEADER + b"\r\nzz\r\n\r\n",
    b"POST /v1/events HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n"
    + HEADER
    + b"\r\nhello",
]


def test_garbage_is_answered_with_400_or_the_end_and_prints_nothing(
    endpoint: EndpointProcess,
) -> None:
    reset_on_close = struct.pack("ii", 1, 0)
    for data in GARBAGE:
        with endpoint.connect(data) as connection:
            connection.shutdown(socket.SHUT_WR)
            assert status_of(connection) in (0, 400)
        with endpoint.connect(data) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_on_close)
    with endpoint.connect(QUESTION) as connection:
        assert status_of(connection) == 200
    assert endpoint.errors_at_end() == ""


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/input HTTP/1.1\r\nHost: a\r\n", QUESTION.replace(b"token", b"guess")]
)
def test_who_does_not_show_the_secret_in_time_is_turned_out(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(listening_port, "STRANGER_S", 0.1)

    async def scenario() -> None:
        server = MasterServer(None, "token", term=1)  # type: ignore[arg-type]
        await server.start("127.0.0.1")
        reader, writer = await asyncio.open_connection(*server.address.split(":"))
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
            assert (b"401" in answer) == (b"guess" in sent)
        writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
