"""Sends bytes of this worker's tensors to members of the round that ask for them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from hvd_elastic_keras.worker.tensor_bytes import Bytes
from hvd_elastic_keras.worker.transfer import frames, handshake

HANDSHAKE_S = 10.0
"""Time for a connection to show that it is a member's."""
MOST_STRANGERS = 64
"""Most connections that have not shown it yet: with one more, the oldest is closed."""
Address = tuple[str, int]
Keep = Callable[[socket.socket], None]
"""Makes a socket's traffic end when the round is aborted."""


class Holder:
    """Listens for members within its `with` block.

    Args:
      host: address of this worker for the other members.
      key: key of the sync; see `handshake`.
      memory: memory of the tensors.
      silent_s: how long a member may receive nothing before its connection is given up.
      keep: called with each socket.
    """

    def __init__(
        self, host: str, key: str, memory: Sequence[Bytes], *, silent_s: float, keep: Keep
    ) -> None:
        self._key, self._memory = key, memory
        self._given, self._expected = 0, -1
        self._silent_s, self._keep = silent_s, keep
        self._lock = threading.Lock()
        self._strangers: list[socket.socket] = []
        self._members: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=MOST_STRANGERS)
        keep(self._listener)
        self.address: Address = self._listener.getsockname()[:2]

    def forget_after(self, count: int) -> None:
        """Releases the tensors when `count` parts have been sent."""
        with self._lock:
            self._expected = count
            self._forget_if_done()

    def _forget_if_done(self) -> None:
        if self._given == self._expected:
            self._memory = ()

    def __enter__(self) -> Holder:
        threading.Thread(target=self._accept, name="elastic-holder", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            ending = [self._listener, *self._strangers, *self._members]
        for each in ending:
            end(each)

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):  # `accept` ends at the shutdown
            while True:
                with contextlib.suppress(ConnectionAbortedError):
                    self._let_in(self._listener.accept()[0])

    def _let_in(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.append(connection)
            if len(self._strangers) > MOST_STRANGERS:
                end(self._strangers.pop(0))
        serve = threading.Thread(
            target=self._serve, args=(connection,), name="elastic-serve", daemon=True
        )
        serve.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            part = self._part_asked_for(connection)
            if part is None:
                return
            connection.settimeout(self._silent_s)
            for chunk in frames.chunks(self._memory, part.start, part.end):
                frames.send(connection, chunk)
            with self._lock:
                self._given += 1
                self._forget_if_done()

    def _part_asked_for(self, connection: socket.socket) -> handshake.Part | None:
        try:
            connection.settimeout(HANDSHAKE_S)
            challenge = handshake.nonce()
            connection.sendall(challenge)
            message = exactly(connection, handshake.REQUEST_BYTES)
            part = handshake.requested(self._key, challenge, message)
            if part is not None:
                self._note_member(connection)
                connection.sendall(handshake.answer(self._key, message))
            return part
        finally:
            self._forget_stranger(connection)

    def _note_member(self, connection: socket.socket) -> None:
        self._keep(connection)
        with self._lock:
            self._members.append(connection)

    def _forget_stranger(self, connection: socket.socket) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._strangers.remove(connection)


def exactly(connection: socket.socket, size: int) -> bytes:
    """Receives exactly `size` bytes.

    Raises:
      OSError: the connection ends early, or nothing comes for too long.
    """
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise ConnectionError("the connection has ended")
        found += more
    return found


def end(connection: socket.socket) -> None:
    """Ends the traffic of a socket, even if another thread is waiting for data from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
