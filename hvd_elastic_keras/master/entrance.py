"""Where workers wait for a place in the next round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hvd_elastic_keras.common import protocol


class Entrance:
    """Holds the requests of workers until they are answered, or until it is time to ask again.

    An answer that comes when nobody waits is kept for the next request of that worker.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[protocol.EnterReply]] = {}
        self._replies: dict[str, protocol.EnterReply] = {}

    async def enter(
        self,
        request: protocol.EnterRequest,
        dispatch: Callable[[protocol.EnterRequest], None],
    ) -> protocol.EnterReply:
        """Holds a worker until it has a place, or asks it to come again."""
        worker_id = request.worker_id
        known = self._replies.pop(worker_id, None)
        if known:
            return known
        future: asyncio.Future[protocol.EnterReply] = asyncio.get_running_loop().create_future()
        self._waiting[worker_id] = future
        dispatch(request)
        try:
            return await asyncio.wait_for(future, protocol.LONG_POLL_S)
        except asyncio.TimeoutError:
            return protocol.EnterReply()
        finally:
            if self._waiting.get(worker_id) is future:
                del self._waiting[worker_id]

    def answer(self, worker_id: str, reply: protocol.EnterReply) -> None:
        """Answers a worker, now or when it asks next."""
        future = self._waiting.pop(worker_id, None)
        if future and not future.done():
            future.set_result(reply)
        else:
            self._replies[worker_id] = reply

    def forget_answer(self, worker_id: str) -> None:
        """An answer that is still here was for an earlier training."""
        self._replies.pop(worker_id, None)

    def gone(self, worker_id: str) -> None:
        """A worker will not ask any more."""
        self.forget_answer(worker_id)
        waiting = self._waiting.pop(worker_id, None)
        if waiting and not waiting.done():
            waiting.cancel()
