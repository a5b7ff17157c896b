"""One port of the master: the application that answers there, and its connections."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from aiohttp import http_exceptions, web

from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.master.http.connections import Connections

SHUTDOWN_S = 0.5


class ListeningPort:
    """An application behind a port of its own.

    Args:
      tls: the TLS context; only TLS connections are taken then. None takes only plain ones.
    """

    def __init__(self, app: web.Application, tls: ssl.SSLContext | None = None) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, logger=_quiet_logger(), shutdown_timeout=SHUTDOWN_S
        )
        self._tls = tls
        self._connections: Connections | None = None
        self._taking: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> str:
        """Listens at `port` of `host`, or at a free port if that is taken; returns host:port."""
        await self._runner.setup()
        if self._runner.server is None:
            raise RuntimeError("the endpoint has not been started")
        listening = _listen(host, port)
        self._connections = Connections(listening, self._tls)
        self._taking = asyncio.create_task(self._connections.take(self._runner.server))
        return host_port.joined(host, listening.getsockname()[1])

    def know(self, transport: asyncio.BaseTransport | None) -> None:
        """Notes that a request with a secret has come on a connection, if it is of this port."""
        if self._connections:
            self._connections.know(transport)

    async def close(self) -> None:
        """Closes all connections and the port."""
        if self._taking and self._connections:
            self._taking.cancel()
            self._connections.close()
        await self._runner.cleanup()


def _listen(host: str, port: int) -> socket.socket:
    """Listens at that port. If that fails, such as when it is taken by now, takes a free one."""
    try:
        return host_port.listening(host, port)
    except OSError:
        return host_port.listening(host, 0)


def _quiet_logger() -> logging.Logger:
    """Returns a logger that ignores requests that are no HTTP.

    Anybody can send such requests, as often as they like.
    """
    logger = logging.getLogger(f"{__name__}.requests")
    logger.addFilter(_is_worth_a_line)
    return logger


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    cause = record.exc_info[1] if record.exc_info else None
    return not isinstance(cause, http_exceptions.HttpProcessingError | web.RequestPayloadError)
