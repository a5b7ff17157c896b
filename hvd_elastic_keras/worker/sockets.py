"""The sockets of this process (Linux): lists them, and ends their traffic.

A process that waits in a Gloo collective for the ring neighbour of a dead peer learns nothing until
the Gloo timeout (30 s). Shutting down its own sockets of that round ends the wait in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable

FD_DIRECTORY = "/proc/self/fd"
SocketSet = frozenset[tuple[int, str]]
"""Pairs of descriptor and kernel name (`socket:[inode]`); the latter is never reused at once."""


def open_sockets() -> SocketSet:
    """Returns all sockets of this process."""
    found = set()
    for name in os.listdir(FD_DIRECTORY):
        link = _link(int(name))
        if link.startswith("socket:"):
            found.add((int(name), link))
    return frozenset(found)


def named(connection: socket.socket) -> tuple[int, str]:
    """Returns a socket in the form in which `open_sockets` lists it."""
    return connection.fileno(), _link(connection.fileno())


def shut_down(sockets: Iterable[tuple[int, str]], except_peer: tuple[str, int] | None) -> int:
    """Ends all traffic of TCP sockets and returns the number of these sockets.

    Leaves alone a descriptor that was closed and given to another socket meanwhile, and a
    connection to `except_peer` (host, port).
    """
    count = 0
    for descriptor, link in sockets:
        # Look at a duplicate: the original may be closed and reused at any moment.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
            same = _link(duplicate.fileno()) == link and _is_tcp(duplicate)
            if same and (except_peer is None or _peer(duplicate) != except_peer):
                duplicate.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _link(descriptor: int) -> str:
    try:
        return os.readlink(f"{FD_DIRECTORY}/{descriptor}")
    except OSError:
        return ""


def _is_tcp(candidate: socket.socket) -> bool:
    return candidate.family in (socket.AF_INET, socket.AF_INET6)


def _peer(candidate: socket.socket) -> tuple[str, int] | None:
    try:
        host, port, *_ = candidate.getpeername()
    except OSError:
        return None
    return str(host), int(port)
