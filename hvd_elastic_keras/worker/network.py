"""The network of a worker: the interface for Gloo, and the sockets of this process (Linux).

Gloo takes the first address of the interface, IPv4 before IPv6.

A process that waits in a Gloo collective for the ring neighbour of a dead peer learns nothing until
the Gloo timeout (30 s). Shutting down its own sockets of that round ends the wait in milliseconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterable, Mapping, Sequence

import psutil

from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.common.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses that no host has (RFC 5737, RFC 3849)."""
LINK_LOCAL = "fe80:"
"""Prefix of addresses that mean nothing on another host."""
Addresses = Mapping[str, Sequence[str]]
"""Addresses of each interface, in the order in which Gloo looks at them."""


@dataclasses.dataclass(frozen=True)
class WayToMaster:
    """How this host reaches the master.

    Attributes:
      interface: network interface of this host.
      master: address and port of the master, as seen in the connections of this process.
    """

    interface: str
    master: tuple[str, int]


def way_to(master: str, wanted: str = "") -> WayToMaster:
    """Returns the way to the master at host:port; over the interface `wanted`, if one is given.

    Raises:
      ConfigurationError: there is no such way. The message lists the interfaces of this host.
    """
    host, port = host_port.split(master)
    found = addresses()
    own, peer = _ends_of_route(host, port, found)
    return WayToMaster(interface(wanted, own, found), (peer, port))


def addresses() -> Addresses:
    """Returns the addresses by which others may reach this host, by interface."""
    ip = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [e.address for e in entries if e.family in ip and LINK_LOCAL not in e.address]
        for name, entries in psutil.net_if_addrs().items()
    }


def first_address(iface: str, found: Addresses) -> str:
    """Returns the address of an interface that Gloo takes; empty if there is none.

    Args:
      iface: name of the interface, or several names with commas between. Gloo takes the first.
    """
    those = found.get(iface.partition(",")[0], ())
    return next((a for a in those if ":" not in a), next(iter(those), ""))


def own_address() -> str:
    """Returns the address by which others most likely reach this host, IPv4 before IPv6.

    This is the address on the way to other networks. If there is no such way, it is the first
    address that is not a loopback address.
    """
    for elsewhere in ELSEWHERE:
        if found := own_address_to(elsewhere):
            return found
    those = [a for found in addresses().values() for a in found if not host_port.is_loopback(a)]
    return min(those, key=lambda address: ":" in address, default=LOOPBACK)


def interface(wanted: str, own: str, found: Addresses) -> str:
    """Returns the interface that is wanted, or else the one with this host's `own` address.

    >>> interface("", "10.0.0.7", {"lo": ["127.0.0.1"], "ens5": ["10.0.0.7"]})
    'ens5'

    Raises:
      ConfigurationError: there is no such interface.
    """
    if wanted:
        if found.get(wanted):
            return wanted
        missing = "no address that others can reach" if wanted in found else "no such interface"
        raise ConfigurationError(
            f"--network_interface={wanted} was given, but this host has {missing}. "
            f"Use one of: {shown(found)}."
        )
    for name, those in found.items():
        if own in those:
            return name
    raise ConfigurationError(
        f"No network interface of this host has the address {own}, with which it reaches the "
        f"master. Choose with --network_interface: {shown(found)}."
    )


def own_address_to(host: str) -> str:
    """Returns the address from which this host sends packets to another; empty if it cannot."""
    with contextlib.suppress(ConfigurationError):
        return _ends_of_route(host, 9, {})[0]
    return ""


def shown(found: Addresses) -> str:
    """Describes for people the interfaces that can be chosen.

    >>> shown({"lo": ["127.0.0.1", "::1"], "ib0": []})
    'lo (127.0.0.1, ::1)'
    """
    return ", ".join(f"{name} ({', '.join(those)})" for name, those in found.items() if those)


def _ends_of_route(host: str, port: int, found: Addresses) -> tuple[str, str]:
    """Returns own address and the master's on the route to the master. Sends nothing."""
    try:
        return _first_route(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"The master at {host_port.joined(host, port)} cannot be reached from this host: "
            f"{error}. Give the master an address, or a name that has one, to which this host has "
            f"a route (--bind). This host has: {shown(found)}."
        ) from error


def _first_route(host: str, port: int) -> tuple[str, str]:
    """Returns the ends of the route to the first address of a name that has a route."""
    problem = OSError("it has no address")
    for family, address in host_port.found(host, port):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return probe.getsockname()[0], probe.getpeername()[0]
        except OSError as error:
            problem = error
    raise problem


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


def named_socket(connection: socket.socket) -> tuple[int, str]:
    """Returns a socket in the form in which `open_sockets` lists it."""
    return connection.fileno(), _link(connection.fileno())


def shut_down_sockets(
    sockets: Iterable[tuple[int, str]], except_peer: tuple[str, int] | None
) -> int:
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
