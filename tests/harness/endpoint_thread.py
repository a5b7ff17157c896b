"""A real endpoint of a master in a thread. Only the test listens behind it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hvd_elastic_keras.common import messages, protocol
from hvd_elastic_keras.master.http.server import MasterServer
from hvd_elastic_keras.settings.env import WorkerEnvironment
from hvd_elastic_keras.worker.client import MasterClient

LIMIT_S = 60.0


class Told:
    """Keeps what the endpoint passes on. Tests ask nothing else of a master here."""

    def __init__(self) -> None:
        self.messages: queue.Queue[messages.Message] = queue.Queue()
        self.answer_lost = threading.Event()
        """If set, the next console message is taken, but its answer is lost with the connection."""
        self.break_connections: Callable[[], None] = lambda: None

    @property
    def workers(self) -> Told:
        return self

    def impossible_in(self, message: messages.Message) -> str:
        return ""

    async def kept(self) -> None:
        """Does nothing: there is no journal."""

    def on_worker_event(self, event: messages.Message) -> None:
        self.messages.put(event)
        if isinstance(event, protocol.Console) and self.answer_lost.is_set():
            self.answer_lost.clear()
            self.break_connections()

    async def update_after(self, worker_id: str, version: int) -> protocol.WorkerUpdate:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    def next(self, kind: type[messages.Message]) -> Any:
        while True:
            message = self.messages.get(timeout=LIMIT_S)
            if isinstance(message, kind):
                return message


class Endpoint(threading.Thread):
    """A server in a thread of its own."""

    def __init__(self, term: int = 1) -> None:
        super().__init__(daemon=True)
        self.told = Told()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._server = MasterServer(self.told, "token", term)  # type: ignore[arg-type]
        self.started = threading.Event()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.start("127.0.0.1")
        self.told.break_connections = self._break_connections
        self.started.set()
        await self._over.wait()
        await self._server.stop()

    def _break_connections(self) -> None:
        (port,) = self._server._ports
        runner = port._runner
        assert runner.server is not None
        for connection in runner.server.connections:
            assert connection.transport is not None
            connection.transport.abort()

    @property
    def address(self) -> str:
        return self._server.address

    def client(self, job_dir: str = "", master_timeout_s: float = 600.0) -> MasterClient:
        environment = WorkerEnvironment(
            self.address, "token", "w0", job_dir, master_timeout_s=master_timeout_s
        )
        return MasterClient(environment, lambda update: None, lambda reason: None)

    def end(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self.join(LIMIT_S)


@contextlib.contextmanager
def served(term: int = 1) -> Iterator[Endpoint]:
    thread = Endpoint(term)
    thread.start()
    assert thread.started.wait(LIMIT_S)
    yield thread
    thread.end()
