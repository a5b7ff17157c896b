"""Transfers tensors over a socket, in chunks with a checksum, out of and into their own memory."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

import google_crc32c
import numpy as np

from hvd_elastic_keras.worker.tensor_bytes import Bytes

CHUNK_BYTES = 2**20
"""Size of a chunk that is still in the processor's cache after the checksum is computed."""
MOST_PIECES = 512
"""Most pieces of memory in one chunk. A system call takes 1,024."""
CHECKSUM = struct.Struct("!I")
Chunk = list[Bytes]
"""Pieces of memory that travel together."""


class DamagedError(ConnectionError):
    """The bytes received are not the bytes sent."""


def chunks(memory: Iterable[Bytes], start: int, end: int) -> Iterator[Chunk]:
    """Cuts pieces of memory, taken one after the other, into chunks from `start` to `end`.

    Sender and receiver get the same chunks, because their pieces have the same sizes.
    """
    chunk, room, before = Chunk(), CHUNK_BYTES, 0
    for piece in memory:
        at, last = max(start - before, 0), min(end - before, len(piece))
        before += len(piece)
        while at < last:
            taken = piece[at : min(last, at + room)]
            chunk.append(taken)
            at, room = at + len(taken), room - len(taken)
            if not room or len(chunk) == MOST_PIECES:
                yield chunk
                chunk, room = Chunk(), CHUNK_BYTES
    if chunk:
        yield chunk


def checksum(pieces: Iterable[Bytes]) -> int:
    """Returns the CRC-32C of pieces of memory, taken one after the other."""
    found = 0
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_BYTES):
            found = google_crc32c.extend(found, piece[start : start + CHUNK_BYTES])
    return found


def send(connection: socket.socket, chunk: Chunk) -> None:
    """Sends a chunk and its checksum.

    Raises:
      OSError: the connection has ended, or nothing was taken for too long.
    """
    left = _views([*chunk, np.frombuffer(CHECKSUM.pack(checksum(chunk)), np.uint8)])
    while left:
        left = _without(left, connection.sendmsg(left))


def receive(connection: socket.socket, chunk: Chunk) -> None:
    """Receives a chunk into its place.

    Raises:
      OSError: the connection has ended, or nothing came for too long.
      DamagedError: the checksum is wrong.
    """
    expected = np.empty(CHECKSUM.size, np.uint8)
    left = _views([*chunk, expected])
    while left:
        count = connection.recvmsg_into(left)[0]
        if count == 0:
            raise ConnectionError("the connection has ended")
        left = _without(left, count)
    if CHECKSUM.unpack(expected.data)[0] != checksum(chunk):
        raise DamagedError("bytes were damaged on the way")


def _views(pieces: Sequence[Bytes]) -> list[memoryview]:
    return [piece.data for piece in pieces]


def _without(views: list[memoryview], count: int) -> list[memoryview]:
    """Returns the views without their first `count` bytes."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
