"""HTTP sessions with a job's master. They send its token; under TLS, they trust one certificate."""

from __future__ import annotations

import socket
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

SILENT_S = 5
"""A connection is given up if the other host's kernel acknowledges nothing for this long."""
SOCKET_OPTIONS = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000),
]


class WatchfulAdapter(HTTPAdapter):
    """Notices within `SILENT_S` that the network to the other host is cut, even while it waits.

    TCP itself would send again less and less often. The longer the network was cut, the later it
    would use the network again.
    """

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Gives all connections the `SOCKET_OPTIONS`."""
        super().init_poolmanager(*args, **kwargs, socket_options=SOCKET_OPTIONS)


class PinnedAdapter(WatchfulAdapter):
    """Accepts one certificate only, whatever its name, dates and issuer.

    Args:
      fingerprint: SHA-256 of the certificate, in hexadecimal digits.
    """

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Makes each connection compare the certificate before it sends anything."""
        super().init_poolmanager(*args, **kwargs, assert_fingerprint=self._fingerprint)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        """Sends like `HTTPAdapter.send`, but asks no certificate authority.

        Raises:
          requests.exceptions.SSLError: the other side shows another certificate.
        """
        try:
            return super().send(request, *args, **{**kwargs, "verify": False})
        except requests.exceptions.SSLError as error:
            raise requests.exceptions.SSLError(
                "what answers there does not show the certificate of this job (SHA-256 "
                f"fingerprint {self._fingerprint})"
            ) from error


def session_of(token: str, fingerprint: str) -> requests.Session:
    """Returns a session with a master.

    Args:
      fingerprint: SHA-256 of the master's certificate; empty without TLS.
    """
    session = requests.Session()
    session.trust_env = False  # no proxy on the way
    session.mount("http://", WatchfulAdapter())
    session.headers["Authorization"] = f"Bearer {token}"
    if fingerprint:
        session.mount("https://", PinnedAdapter(fingerprint))
    return session


def url_of(address: str, fingerprint: str, path: str) -> str:
    """Returns the URL of a path of the API."""
    return f"{'https' if fingerprint else 'http'}://{address}/v1/{path}"
