"""A master's endpoint in a process that may open few descriptors. A test commands it on stdin."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.http import certificate, listening_port
from hvd_elastic_keras.master.http.server import MasterServer

if TYPE_CHECKING:
    from typing_extensions import Self

REPOSITORY = Path(__file__).resolve().parents[2]
DESCRIPTORS = 100
TOKEN = "token"
HEADER = f"Authorization: Bearer {TOKEN}\r\n".encode()
QUESTION = b"GET /v1/input HTTP/1.1\r\nHost: master\r\n" + HEADER + b"\r\n"
LIMIT_S = 60.0


class Core:
    """Answers one question. Tests ask nothing else of a master here."""

    @property
    def workers(self) -> Core:
        return self

    def input_position(self) -> protocol.InputReply:
        return protocol.InputReply()


async def _serve(certificate_dir: str = "") -> None:
    server = MasterServer(Core(), TOKEN, term=1)  # type: ignore[arg-type]
    tls = certificate.context_of(Path(certificate_dir)) if certificate_dir else None
    await server.start("127.0.0.1", tls=tls)
    print(server.address, f"127.0.0.1{server.rendezvous_of(1)}", flush=True)
    held: list[int] = []
    while command := await asyncio.to_thread(sys.stdin.readline):
        if command == "use up\n":
            _use_up(held)
        else:
            while held:
                os.close(held.pop())
        print("done", flush=True)
    await server.stop()


def _use_up(held: list[int]) -> None:
    while True:
        try:
            held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return


class EndpointProcess:
    """The endpoint's process, seen from a test. Use it in a `with` block.

    Args:
      certificate_dir: directory of the certificate that the endpoint shows; without it, no TLS.

    Attributes:
      address: host and port of the API.
      store: the URL of the rendezvous store of round 1.
    """

    def __init__(self, *certificate_dir: Path) -> None:
        self._arguments = list(map(str, certificate_dir))

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.endpoint_process", *self._arguments],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        address, store = self._answer().split()
        host, port = address.split(":")
        self.address, self.store = (host, int(port)), f"http://{store}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=LIMIT_S)

    def tell(self, command: str) -> None:
        """Sends a command, and waits until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def errors_at_end(self) -> str:
        """Ends the process; returns what it has printed to stderr."""
        _, errors = self._process.communicate(timeout=LIMIT_S)
        assert self._process.returncode == 0, errors
        return errors

    def descriptors(self) -> int:
        """Returns the number of open descriptors."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def connect(self, data: bytes = b"") -> socket.socket:
        """Returns a new connection, on which `data` has been sent."""
        connection = socket.create_connection(self.address, timeout=LIMIT_S)
        connection.sendall(data)
        return connection

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def status_of(connection: socket.socket) -> int:
    """Returns the status of the next answer; 0 if the connection has been closed."""
    try:
        head = connection.recv(4096)
    except ConnectionResetError:
        return 0
    return int(head.split()[1]) if head else 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    listening_port.ACCEPT_AGAIN_S = 0.0
    asyncio.run(_serve(*sys.argv[1:]))
