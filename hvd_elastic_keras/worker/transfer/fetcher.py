"""Fetches bytes of tensors from their holders, directly into their place."""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import socket
from collections.abc import Iterator, Sequence
from concurrent import futures

from hvd_elastic_keras.worker.tensor_bytes import Bytes
from hvd_elastic_keras.worker.transfer import frames, handshake
from hvd_elastic_keras.worker.transfer.handshake import Part
from hvd_elastic_keras.worker.transfer.holder import Address, Keep, end, exactly

CONNECT_S = 10.0


@dataclasses.dataclass(frozen=True)
class Source:
    """A holder's address, and the part that it gives."""

    address: Address
    part: Part


class Fetcher:
    """Connections to holders, which have to show that they are members of the round.

    Args:
      key: key of the sync; see `handshake`.
      silent_s: how long a holder may send nothing before its connection is given up.
      keep: called with each socket.
    """

    def __init__(self, key: str, *, silent_s: float, keep: Keep) -> None:
        self._key, self._silent_s, self._keep = key, silent_s, keep
        self._open: list[tuple[socket.socket, Part]] = []

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        for connection, _part in self._open:
            end(connection)  # another thread may be waiting for data from it
            connection.close()

    def connect(self, sources: Sequence[Source]) -> None:
        """Connects to all sources.

        Raises:
          OSError: a source cannot be reached, or is not a member of the round.
        """
        for source in sources:
            with _named(source.address):
                self._connect(source)

    def _connect(self, source: Source) -> None:
        host, part = source.address[0], source.part
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._open.append((connection, part))
        self._keep(connection)
        connection.settimeout(CONNECT_S)
        connection.connect(source.address)
        challenge = exactly(connection, handshake.NONCE_BYTES)
        message = handshake.request(self._key, challenge, part)
        connection.sendall(message)
        found = exactly(connection, handshake.ANSWER_BYTES)
        if not hmac.compare_digest(found, handshake.answer(self._key, message)):
            raise ConnectionError("somebody else has answered")
        connection.settimeout(self._silent_s)

    def fetch(self, memory: Sequence[Bytes]) -> None:
        """Receives all parts at the same time.

        Raises:
          OSError: a part has not come, or was damaged on the way.
        """
        with futures.ThreadPoolExecutor(max(1, len(self._open))) as threads:
            parts = [threads.submit(self._receive, c, p, memory) for c, p in self._open]
            for part in futures.as_completed(parts):
                part.result()

    def _receive(self, connection: socket.socket, part: Part, memory: Sequence[Bytes]) -> None:
        try:
            for chunk in frames.chunks(memory, part.start, part.end):
                frames.receive(connection, chunk)
        except OSError:
            for other, _part in self._open:
                end(other)  # without this part, the others are of no use
            raise


@contextlib.contextmanager
def _named(address: Address) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConnectionError(f"{address[0]}:{address[1]}: {error}") from error
