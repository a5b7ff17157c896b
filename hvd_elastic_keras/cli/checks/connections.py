"""Checks how other hosts reach this one, and whether a program may listen here."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from hvd_elastic_keras.cli.checks.finding import OK, PROBLEM, WARNING, Finding
from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.worker import network

CONNECT_TIMEOUT_S = 5.0


def connections() -> Iterator[Finding]:
    """Checks the network interface, and ports on loopback and on the address for other hosts."""
    own, found = network.own_address(), network.addresses()
    yield interface(own, found)
    yield port("port", network.LOOPBACK, PROBLEM)
    if own != network.LOOPBACK:
        yield port("port for others", own, WARNING)


def interface(own: str, found: network.Addresses) -> Finding:
    """Checks the network interface by which other hosts would reach this one.

    Args:
      own: the address of this host that other hosts would be given.
      found: all addresses of this host.
    """
    if own == network.LOOPBACK:
        return Finding(
            WARNING,
            "network",
            f"only {network.shown(found) or 'no interface'}",
            "an address by which other hosts reach this one",
            "Nothing to do for workers on this host alone",
        )
    try:
        name = network.interface("", own, found)
    except ConfigurationError as error:
        return Finding(WARNING, "network", str(error))
    others = {n: a for n, a in found.items() if a and n != name and network.LOOPBACK not in a}
    more = f" (--bind, --network_interface choose: {network.shown(others)})" if others else ""
    return Finding(OK, "network", f"other hosts would reach this one at {own}, {name}{more}")


def port(check: str, address: str, level: str) -> Finding:
    """Checks whether a program can listen at an address of this host and get a connection.

    Args:
      level: level of the finding if it cannot.
    """
    try:
        with host_port.listening(address, 0) as server:
            server.settimeout(CONNECT_TIMEOUT_S)
            socket.create_connection(server.getsockname()[:2], CONNECT_TIMEOUT_S).close()
            server.accept()[0].close()
    except OSError as error:
        remedy = (
            f"See that the interface of {address} is up (ip addr) and that no firewall rule stops "
            "connections to ports that the system chooses (sysctl net.ipv4.ip_local_port_range)"
        )
        return Finding(level, check, f"{address}: {error}", "a connection to a free port", remedy)
    return Finding(OK, check, f"can listen at {address} and be connected to")
