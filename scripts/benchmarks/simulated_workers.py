"""Workers that exist only as messages: the protocol's real messages, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from hvd_elastic_keras.common import messages, protocol

HEARTBEAT_S = 0.5
MICRO_BATCHES = 0
"""As in a user's own training loop: any number of workers is of use."""


class SimulatedWorker:
    """One worker, with the three connections that a real worker keeps open."""

    def __init__(self, address: str, token: str, number: int) -> None:
        self._entrance, self._updates, self._events = (Connection(address, token) for _ in range(3))
        self._sending = asyncio.Lock()
        self.worker_id = f"w{number}"
        self.place: protocol.Assignment | None = None
        self.pending_at = 0.0
        """The time when it was told that its round ends."""
        self.heartbeat_s: list[float] = []
        """The seconds that each of its heartbeats took."""
        self._numbers = itertools.count(1)

    @property
    def round(self) -> int:
        """The newest round in which the worker has a place."""
        return self.place.round if self.place else 0

    async def join(self) -> None:
        """Reports that it is warm, and waits for its first place."""
        await self.tell(
            protocol.Joined(
                worker_id=self.worker_id,
                training=1,
                pid=1,
                num_micro_batches=MICRO_BATCHES,
                warm_up_s=0.0,
            )
        )
        await self.enter()

    async def enter(self) -> None:
        """Waits for a place, or for the answer to leave."""
        request = protocol.EnterRequest(
            worker_id=self.worker_id,
            training=1,
            from_round=self.round,
            has_state=self.round > 0,
            progress=self.round,
            step=self.round,
        )
        reply = protocol.EnterReply()
        while not (reply.assignment or reply.leave):
            body = await self._entrance.call("POST", "enter", messages.encode(request))
            reply = messages.decode(body, protocol.EnterReply)
        self.place = reply.assignment

    async def run(self) -> None:
        """Reports that it trains."""
        await self.tell(
            protocol.Running(worker_id=self.worker_id, round=self.round, step=self.round)
        )

    async def leave(self) -> None:
        """Asks to leave after the present step."""
        await self.tell(protocol.Leaving(worker_id=self.worker_id, reason="asked to"))

    async def beat(self) -> None:
        """Sends heartbeats until it is cancelled."""
        step = 0
        await asyncio.sleep(HEARTBEAT_S * random.random())
        while True:
            began = time.monotonic()
            step += 1
            await self.tell(
                protocol.Heartbeat(
                    worker_id=self.worker_id,
                    training=1,
                    round=self.round,
                    step=self.round,
                    progress=step,
                    phase="training",
                )
            )
            self.heartbeat_s.append(time.monotonic() - began)
            await asyncio.sleep(max(0.0, began + HEARTBEAT_S - time.monotonic()))

    async def listen(self) -> None:
        """Keeps one long poll open until it is cancelled."""
        version = 0
        while True:
            path = f"updates?worker_id={self.worker_id}&version={version}"
            update = messages.decode(await self._updates.call("GET", path), protocol.WorkerUpdate)
            version = update.version
            if self.round and update.pending_through >= self.round:
                self.pending_at = time.monotonic()

    async def tell(self, message: messages.Message) -> None:
        """Posts an event."""
        async with self._sending:
            path = f"events?number={next(self._numbers)}"
            await self._events.call("POST", path, messages.encode(message))


class Connection:
    """One connection to the master, for one request at a time: cheaper than any client library.

    The simulation uses the same processors as the master.
    """

    def __init__(self, address: str, token: str) -> None:
        self._host, port = address.rsplit(":", 1)
        self._port = int(port)
        self._head = f"Host: {address}\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Sends a request; returns the content of the answer.

        Raises:
          RuntimeError: if the master refuses the request.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**24)
        reader, writer = self._streams
        head = f"{method} /v1/{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length: ")[2].partition("\r\n")[0])
        content = await reader.readexactly(length)
        if not answer.startswith("http/1.1 200"):
            raise RuntimeError(f"{method} {path}: {content.decode()}")
        return content


async def all_of(
    workers: Iterable[SimulatedWorker], do: Callable[[SimulatedWorker], Awaitable[None]]
) -> float:
    """Lets all workers do something at once; returns the seconds until the last one is done."""
    began = time.monotonic()
    await asyncio.gather(*(do(worker) for worker in workers))
    return time.monotonic() - began


@contextlib.asynccontextmanager
async def alive(workers: Iterable[SimulatedWorker]) -> AsyncIterator[None]:
    """Lets all workers listen and send heartbeats within the block, not all at the same moment."""
    tasks: list[asyncio.Task[None]] = []
    try:
        for worker in workers:
            tasks += [asyncio.create_task(worker.listen()), asyncio.create_task(worker.beat())]
            await asyncio.sleep(0)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
