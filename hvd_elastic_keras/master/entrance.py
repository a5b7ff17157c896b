"""The entrance, where workers wait for a place in the next round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hvd_elastic_keras.common import protocol

ANY = 0
"""Stands for any training, in place of its number."""


class Entrance:
    """Holds the requests of workers until they are answered, or until it is time to ask again.

    If a worker is not waiting, its answer is kept for its next request. An answer for another
    training than that of the request is dropped.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, asyncio.Future[protocol.EnterReply]]] = {}
        self._replies: dict[str, tuple[int, protocol.EnterReply]] = {}

    async def enter(
        self,
        request: protocol.EnterRequest,
        dispatch: Callable[[protocol.EnterRequest], None],
    ) -> protocol.EnterReply:
        """Holds a worker until it has a place, or tells it to ask again."""
        worker_id = request.worker_id
        training, known = self._replies.pop(worker_id, (ANY, None))
        if known and training in (ANY, request.training):
            return known
        future: asyncio.Future[protocol.EnterReply] = asyncio.get_running_loop().create_future()
        mine = self._waiting[worker_id] = request.training, future
        dispatch(request)
        try:
            return await asyncio.wait_for(future, protocol.LONG_POLL_S)
        except asyncio.TimeoutError:
            return protocol.EnterReply()
        finally:
            if self._waiting.get(worker_id) is mine:
                del self._waiting[worker_id]

    def answer(self, worker_id: str, reply: protocol.EnterReply, training: int = ANY) -> None:
        """Answers a worker, now or when it asks next.

        Args:
          training: number of the training that the answer is for.
        """
        asked, future = self._waiting.get(worker_id, (training, None))
        if training not in (ANY, asked):
            return
        self._waiting.pop(worker_id, None)
        if future and not future.done():
            future.set_result(reply)
        else:
            self._replies[worker_id] = training, reply

    def gone(self, worker_id: str) -> None:
        """Forgets a worker that will not ask any more."""
        self._replies.pop(worker_id, None)
        _, waiting = self._waiting.pop(worker_id, (ANY, None))
        if waiting and not waiting.done():
            waiting.cancel()
