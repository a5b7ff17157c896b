"""HTTP to the master of a job: with its token and, under TLS, to its certificate alone."""

from __future__ import annotations

import socket
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

SILENT_S = 5
"""A connection is given up if the other host's kernel acknowledges nothing for so long."""
SOCKET_OPTIONS = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000),
]


class WatchfulAdapter(HTTPAdapter):
    """Notices within `SILENT_S` that the way to the other host is cut, also while it only waits.

    TCP itself would send again less and less often, and use a way that is back the later the longer
    it was cut.
    """

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Has all connections made that way."""
        super().init_poolmanager(*args, **kwargs, socket_options=SOCKET_OPTIONS)


class PinnedAdapter(WatchfulAdapter):
    """Speaks to who holds one certificate, whatever its name, dates and issuer.

    Args:
      fingerprint: SHA-256 of the certificate, in hexadecimal digits.
    """

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Has the certificate of each connection compared before anything is sent there."""
        super().init_poolmanager(*args, **kwargs, assert_fingerprint=self._fingerprint)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        """As `HTTPAdapter.send`, without a look at other authorities.

        Raises:
          requests.exceptions.SSLError: another certificate is shown there.
        """
        try:
            return super().send(request, *args, **{**kwargs, "verify": False})
        except requests.exceptions.SSLError as error:
            raise requests.exceptions.SSLError(
                "what answers there does not show the certificate of this job (SHA-256 "
                f"fingerprint {self._fingerprint})"
            ) from error


def session_of(token: str, fingerprint: str) -> requests.Session:
    """Requests to a master; `fingerprint` is that of its certificate, empty without TLS."""
    session = requests.Session()
    session.trust_env = False  # no proxy on the way
    session.mount("http://", WatchfulAdapter())
    session.headers["Authorization"] = f"Bearer {token}"
    if fingerprint:
        session.mount("https://", PinnedAdapter(fingerprint))
    return session


def url_of(address: str, fingerprint: str, path: str) -> str:
    """Where a path of the API is found."""
    return f"{'https' if fingerprint else 'http'}://{address}/v1/{path}"
