"""Which network interface of this host Gloo uses: that which leads to the master, or a chosen one.

Gloo takes the first address of the interface, IPv4 before IPv6.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Mapping, Sequence

import psutil

from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.common.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has (RFC 5737, RFC 3849)."""
LINK_LOCAL = "fe80:"
"""Begins addresses that mean nothing on another host."""
Addresses = Mapping[str, Sequence[str]]
"""Those of each interface, in the order in which Gloo looks at them."""


@dataclasses.dataclass(frozen=True)
class WayToMaster:
    """How this host reaches the master.

    Attributes:
      master: address and port, as connections of this process name them.
    """

    interface: str
    master: tuple[str, int]


def way_to(master: str, wanted: str = "") -> WayToMaster:
    """The way to the master at host:port; over the interface `wanted`, if one is given.

    Raises:
      ConfigurationError: there is none, with what this host has.
    """
    host, port = host_port.split(master)
    found = addresses()
    own, peer = _ends_of_route(host, port, found)
    return WayToMaster(interface(wanted, own, found), (peer, port))


def addresses() -> Addresses:
    """The addresses of this host by which others may reach it, by interface."""
    ip = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [e.address for e in entries if e.family in ip and LINK_LOCAL not in e.address]
        for name, entries in psutil.net_if_addrs().items()
    }


def first_address(iface: str, found: Addresses) -> str:
    """The address of an interface that Gloo takes; empty if there is none.

    Args:
      iface: name, or several with commas between, of which Gloo takes the first.
    """
    those = found.get(iface.partition(",")[0], ())
    return next((a for a in those if ":" not in a), next(iter(those), ""))


def own_address() -> str:
    """The address of this host by which others most likely reach it, IPv4 before IPv6.

    That on the way to other networks; if there is none, the first that is not of the host itself.
    """
    for elsewhere in ELSEWHERE:
        if found := own_address_to(elsewhere):
            return found
    those = [a for found in addresses().values() for a in found if not host_port.is_loopback(a)]
    return min(those, key=lambda address: ":" in address, default=LOOPBACK)


def interface(wanted: str, own: str, found: Addresses) -> str:
    """The interface that is wanted, or else the one with this host's `own` address.

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
    """The address of this host from which packets go to another one; empty if none do."""
    with contextlib.suppress(ConfigurationError):
        return _ends_of_route(host, 9, {})[0]
    return ""


def shown(found: Addresses) -> str:
    """Interfaces that can be chosen, for people.

    >>> shown({"lo": ["127.0.0.1", "::1"], "ib0": []})
    'lo (127.0.0.1, ::1)'
    """
    return ", ".join(f"{name} ({', '.join(those)})" for name, those in found.items() if those)


def _ends_of_route(host: str, port: int, found: Addresses) -> tuple[str, str]:
    """Own address and the master's, where packets to the master go. Nothing is sent."""
    try:
        return _first_route(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"The master at {host_port.joined(host, port)} cannot be reached from this host: "
            f"{error}. Give the master an address, or a name that has one, to which this host has "
            f"a route (--bind). This host has: {shown(found)}."
        ) from error


def _first_route(host: str, port: int) -> tuple[str, str]:
    """To the first of the addresses that a name has to which there is one."""
    problem = OSError("it has no address")
    for family, address in host_port.found(host, port):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return probe.getsockname()[0], probe.getpeername()[0]
        except OSError as error:
            problem = error
    raise problem
