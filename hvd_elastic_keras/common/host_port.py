"""Addresses of the form host:port, where an IPv6 address stands in brackets (RFC 3986, 3.2.2)."""

from __future__ import annotations

import socket
from typing import Any

ANY_IPV4 = "0.0.0.0"
ANY_IPV6 = "::"
"""All addresses of this host, including its IPv4 addresses."""


def joined(host: str, port: int) -> str:
    """Joins a host and a port to one text.

    >>> joined("10.0.0.7", 80), joined("fd00::7", 80)
    ('10.0.0.7:80', '[fd00::7]:80')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(text: str) -> tuple[str, int]:
    """Splits a text into the host, without brackets, and the port.

    >>> split("trainer-1:80"), split("[fd00::7]:80")
    (('trainer-1', 80), ('fd00::7', 80))

    Raises:
      ValueError: the text is not of that form.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets before the port")
    if not host or not (port.isascii() and port.isdecimal()):
        raise ValueError(f"{text!r} is not of the form host:port")
    return host, int(port)


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at a port of this host; port 0 chooses a free one.

    Raises:
      OSError: the socket cannot listen there.
    """
    family, address = found(host, port)[0]
    both = host == ANY_IPV6 and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, dualstack_ipv6=both)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this host itself.

    >>> [is_loopback(host) for host in ("127.0.1.1", "::1", "localhost", "10.0.0.7")]
    [True, True, True, False]
    """
    return host.startswith("127.") or host in ("::1", "localhost")


def found(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Returns socket families and addresses of a host, which may be a name; IPv4 first, as Gloo.

    Raises:
      OSError: there is no such host.
    """
    those = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted(
        ((family, address) for family, *_, address in those),
        key=lambda one: one[0] != socket.AF_INET,
    )
