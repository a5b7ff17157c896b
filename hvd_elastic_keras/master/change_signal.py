"""Wakes all requests that wait for the job's state to change, in one moment.

With an `asyncio.Condition`, each of a thousand waiters would wait for the lock of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ChangeSignal:
    """A signal that many tasks wait for, again and again. Used from one event loop only."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def tell(self) -> None:
        """Wakes all waiting tasks."""
        told, self._next = self._next, None
        if told is not None:
            told.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Returns when there is news, or after `timeout_s` seconds."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next], timeout=timeout_s)

    async def wait_for_newer(
        self, version: Callable[[], int], known: int, timeout_s: float
    ) -> None:
        """Returns when `version()` exceeds `known`, or after `timeout_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while version() <= known and loop.time() < deadline:
            await self.wait(deadline - loop.time())
