"""One port of the master: the application that answers there, and its connections.

Strangers cannot use up the descriptors of the launcher. A stranger is a connection on which no
request with the job's secret has come yet. Even its TLS handshake may not have ended. A limited
number of strangers is kept, each for a short time. The oldest one is closed first. Connections of
workers are never counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from aiohttp import http_exceptions, web

from hvd_elastic_keras.common import host_port

MOST_STRANGERS = 4096
"""Largest number of strangers; smaller if the process may open few descriptors."""
SHARE_OF_DESCRIPTORS = 4
"""Strangers get at most one in this many descriptors."""
STRANGER_S = 10.0
"""The head of a request with the secret has to arrive within this many seconds."""
ACCEPT_AGAIN_S = 0.1
TOLD_AGAIN_S = 60.0
BACKLOG = 4096
AT_ONCE = 256
"""Largest number of connections taken before requests have their turn."""

log = logging.getLogger(__name__)
NewProtocol = Callable[[], asyncio.Protocol]
Stranger = asyncio.BaseTransport | asyncio.Task[None]
"""A connection, or the task that opens it."""


class Connections:
    """Takes the connections of one listening socket, and closes those of strangers.

    Args:
      tls: the TLS context for the handshake of each connection; None takes plain connections.
    """

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._listening = listening
        self._tls = tls
        self._strangers: dict[Stranger, asyncio.TimerHandle] = {}
        self._most = min(MOST_STRANGERS, _descriptors() // SHARE_OF_DESCRIPTORS)
        self._silent_until = 0.0

    async def take(self, new_protocol: NewProtocol) -> None:
        """Takes connections until it is cancelled."""
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
                taken = [connection, *self._all_there()]
            except OSError as error:
                await self._wait_for_room(error)
            else:
                for connection in taken:
                    self._make_room()
                    opening = asyncio.create_task(self._open(connection, new_protocol))
                    self._limit(opening, loop.time() + STRANGER_S)
                await asyncio.sleep(0)  # let others run: many may wait to be accepted

    def know(self, transport: asyncio.BaseTransport | None) -> None:
        """Notes that a request with the secret has come: the connection is no stranger now."""
        if transport:
            self._forget(transport)

    def close(self) -> None:
        """Closes the port. Open connections stay open."""
        self._listening.close()
        for stranger in list(self._strangers):
            if isinstance(stranger, asyncio.Task):
                stranger.cancel()
            self._forget(stranger)

    def _all_there(self) -> list[socket.socket]:
        """Takes all connections that have come meanwhile: one at a time, many would wait long."""
        taken: list[socket.socket] = []
        with contextlib.suppress(OSError):  # no more at present; `take` will meet other errors
            while len(taken) < min(AT_ONCE, self._most // 4):
                taken.append(self._listening.accept()[0])
        return taken

    async def _open(self, connection: socket.socket, new_protocol: NewProtocol) -> None:
        loop, opening = asyncio.get_running_loop(), asyncio.current_task()
        until = loop.time() + STRANGER_S
        try:
            transport, _ = await loop.connect_accepted_socket(
                new_protocol, connection, ssl=self._tls
            )
            self._limit(transport, until)
        except OSError:
            connection.close()
        finally:
            if opening:
                self._forget(opening)

    def _limit(self, stranger: Stranger, until: float) -> None:
        loop = asyncio.get_running_loop()
        self._strangers[stranger] = loop.call_at(until, self._turn_out, stranger)

    def _forget(self, stranger: Stranger) -> None:
        timer = self._strangers.pop(stranger, None)
        if timer:
            timer.cancel()

    def _make_room(self) -> None:
        if len(self._strangers) < self._most:
            return
        for stranger in list(self._strangers):
            if isinstance(stranger, asyncio.BaseTransport) and stranger.is_closing():
                self._forget(stranger)
        while len(self._strangers) >= self._most:
            self._turn_out(next(iter(self._strangers)))

    def _turn_out(self, stranger: Stranger) -> None:
        self._forget(stranger)
        if isinstance(stranger, asyncio.Task):
            stranger.cancel()
        elif isinstance(stranger, asyncio.WriteTransport):
            stranger.abort()

    async def _wait_for_room(self, error: OSError) -> None:
        """Closes all strangers, because descriptors or memory have run out.

        Connections on which the secret was sent come first.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._silent_until:
            self._silent_until = now + TOLD_AGAIN_S
            log.warning("no connection can be accepted at present: %s", error.strerror)
        for stranger in list(self._strangers):
            self._turn_out(stranger)
        await asyncio.sleep(ACCEPT_AGAIN_S)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_STRANGERS * SHARE_OF_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


SHUTDOWN_S = 0.5


class ListeningPort:
    """An application behind a port of its own.

    Args:
      tls: the TLS context; only TLS connections are taken then. None takes only plain ones.
    """

    def __init__(self, app: web.Application, tls: ssl.SSLContext | None = None) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, logger=_quiet_logger(), shutdown_timeout=SHUTDOWN_S
        )
        self._tls = tls
        self._connections: Connections | None = None
        self._taking: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> str:
        """Listens at `port` of `host`, or at a free port if that is taken; returns host:port."""
        await self._runner.setup()
        if self._runner.server is None:
            raise RuntimeError("the endpoint has not been started")
        listening = _listen(host, port)
        self._connections = Connections(listening, self._tls)
        self._taking = asyncio.create_task(self._connections.take(self._runner.server))
        return host_port.joined(host, listening.getsockname()[1])

    def know(self, transport: asyncio.BaseTransport | None) -> None:
        """Notes that a request with a secret has come on a connection, if it is of this port."""
        if self._connections:
            self._connections.know(transport)

    async def close(self) -> None:
        """Closes all connections and the port."""
        if self._taking and self._connections:
            self._taking.cancel()
            self._connections.close()
        await self._runner.cleanup()


def _listen(host: str, port: int) -> socket.socket:
    """Listens at that port. If that fails, such as when it is taken by now, takes a free one."""
    try:
        return host_port.listening(host, port)
    except OSError:
        return host_port.listening(host, 0)


def _quiet_logger() -> logging.Logger:
    """Returns a logger that ignores requests that are no HTTP.

    Anybody can send such requests, as often as they like.
    """
    logger = logging.getLogger(f"{__name__}.requests")
    logger.addFilter(_is_worth_a_line)
    return logger


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    cause = record.exc_info[1] if record.exc_info else None
    return not isinstance(cause, http_exceptions.HttpProcessingError | web.RequestPayloadError)
