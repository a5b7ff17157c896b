"""An endpoint that uses TLS: which requests are answered, and what strangers find there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from hvd_elastic_keras.cli import control_job
from hvd_elastic_keras.cli.take_over import trusted_endpoint
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, MasterUnreachableError
from hvd_elastic_keras.common.master_session import session_of, url_of
from hvd_elastic_keras.master.http import certificate, listening_port
from hvd_elastic_keras.master.http.server import MasterServer
from hvd_elastic_keras.settings.env import WorkerEnvironment
from hvd_elastic_keras.worker.client import MasterClient
from tests.harness.endpoint_process import (
    DESCRIPTORS,
    LIMIT_S,
    QUESTION,
    TOKEN,
    EndpointProcess,
    status_of,
)

SHARE = DESCRIPTORS // listening_port.SHARE_OF_DESCRIPTORS
ANOTHER = "does not show the certificate of this job"


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    certificate.make(tmp_path)
    return tmp_path


@pytest.fixture
def endpoint(job_dir: Path) -> Iterator[EndpointProcess]:
    with EndpointProcess(job_dir) as process:
        yield process


@pytest.fixture
def another(tmp_path: Path) -> str:
    """Returns the fingerprint of a certificate of another job."""
    other = tmp_path / "other"
    other.mkdir()
    certificate.make(other)
    return certificate.fingerprint_in(other)


def ask(endpoint: EndpointProcess, fingerprint: str) -> int:
    address = "{}:{}".format(*endpoint.address)
    with session_of(TOKEN, fingerprint) as session:
        return session.get(url_of(address, fingerprint, "input"), timeout=LIMIT_S).status_code


def test_the_one_certificate_is_trusted_and_no_other(
    endpoint: EndpointProcess, job_dir: Path, another: str
) -> None:
    assert ask(endpoint, certificate.fingerprint_in(job_dir)) == 200
    with pytest.raises(requests.exceptions.SSLError, match=ANOTHER):
        ask(endpoint, another)
    with pytest.raises(requests.ConnectionError):
        ask(endpoint, "")  # plain HTTP
    assert endpoint.errors_at_end() == ""


def test_ctl_and_workers_say_in_one_sentence_that_the_certificate_is_another(
    endpoint: EndpointProcess, job_dir: Path, another: str
) -> None:
    address = "{}:{}".format(*endpoint.address)
    files.write_endpoint(job_dir, address, TOKEN, another)
    with pytest.raises(
        MasterUnreachableError, match=rf"{ANOTHER} \(SHA-256 fingerprint {another}\)\. If it is"
    ):
        control_job.read_status(job_dir)
    environment = WorkerEnvironment(
        address, TOKEN, "w0", str(job_dir), master_timeout_s=0.1, fingerprint=another
    )
    client = MasterClient(environment, lambda update: None, lambda reason: None)
    with pytest.raises(MasterUnreachableError, match=rf"{ANOTHER} \(.*\)\. To go on: python"):
        client.root()


def test_the_api_answers_with_tls_and_the_store_without(
    endpoint: EndpointProcess, job_dir: Path
) -> None:
    path = endpoint.store.split("/", 3)[3]
    plain, session = (session_of(TOKEN, f) for f in ("", certificate.fingerprint_in(job_dir)))
    with plain, session:
        assert plain.put(f"{endpoint.store}:1/key", data=b"1").status_code == 200
        assert plain.get(f"{endpoint.store}:1/key").content == b"1"
        origin = endpoint.store.removesuffix(path)
        assert plain.get(f"{origin}v1/input").status_code == 404
        assert requests.get(f"{origin}v1/input", timeout=LIMIT_S).status_code == 401
        with_tls = "https://{}:{}/{}".format(*endpoint.address, path)
        assert session.get(f"{with_tls}:1/key").status_code == 404
    assert endpoint.errors_at_end() == ""


def test_what_is_no_handshake_ends_without_a_word_on_the_console(
    endpoint: EndpointProcess,
) -> None:
    for data in (
        QUESTION,
        bytes(300),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
    ):
        with endpoint.connect(data) as connection:
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass
    assert endpoint.errors_at_end() == ""


def test_those_who_never_shake_hands_cannot_use_up_the_descriptors(
    endpoint: EndpointProcess, job_dir: Path
) -> None:
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(endpoint.connect()) for _ in range(3 * DESCRIPTORS)]
        assert ask(endpoint, certificate.fingerprint_in(job_dir)) == 200
        assert status_of(strangers[0]) == 0, "the oldest goes first"
        assert endpoint.descriptors() < DESCRIPTORS - SHARE
    assert endpoint.errors_at_end() == ""


@pytest.mark.parametrize("shakes_hands", [False, True])
def test_who_does_not_show_the_secret_in_time_is_turned_out_of_tls_too(
    monkeypatch: pytest.MonkeyPatch, job_dir: Path, shakes_hands: bool
) -> None:
    monkeypatch.setattr(listening_port, "STRANGER_S", 0.5)
    trusting = ssl.create_default_context(cafile=str(job_dir / files.CERTIFICATE))

    async def scenario() -> None:
        server = MasterServer(None, TOKEN, term=1)  # type: ignore[arg-type]
        await server.start("127.0.0.1", tls=certificate.context_of(job_dir))
        reader, writer = await asyncio.open_connection(
            *server.address.split(":"), ssl=trusting if shakes_hands else None
        )
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_the_key_is_for_the_user_alone_and_goes_with_the_job(job_dir: Path) -> None:
    path = job_dir / files.CERTIFICATE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = certificate.fingerprint_in(job_dir)
    certificate.make(job_dir)
    assert certificate.fingerprint_in(job_dir) != before
    files.remove_endpoint(job_dir)
    assert not path.exists()
    assert certificate.fingerprint_in(job_dir) == ""


def test_workers_cannot_be_taken_over_without_the_certificate_that_they_trust(
    job_dir: Path,
) -> None:
    files.write_endpoint(job_dir, "127.0.0.1:1", TOKEN, certificate.fingerprint_in(job_dir))
    assert trusted_endpoint(job_dir) == files.read_endpoint(job_dir)
    certificate.make(job_dir)
    assert trusted_endpoint(job_dir) is None
    files.write_endpoint(job_dir, "127.0.0.1:1", TOKEN)
    assert trusted_endpoint(job_dir) == files.read_endpoint(job_dir), "it spoke plain HTTP"


def test_without_the_program_openssl_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"openssl, which makes .* Install it"):
        certificate.make(tmp_path)
