"""Workers that have come by themselves (`run --join`). A joiner starts and ends each of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_elastic_keras.launchers.base import WorkerExit

END_AWAITED_S = 15.0
"""Seconds that the end of a job waits for a worker that was given up before.

The joiner of the worker ends it within `cli.joined_process.END_WITHIN_S`, unless its host is gone.
"""


class JoinedWorkers:
    """The joined workers that run, as far as joiners have reported.

    Args:
      clock: returns the seconds of a steady clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._on_exit: dict[str, Callable[[WorkerExit], None]] = {}
        self._ending: dict[str, float] = {}
        """Workers that were given up, and the time when that happened."""

    def watch(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> None:
        """Adds a worker that has joined."""
        self._on_exit[worker_id] = on_exit

    def exited(self, event: WorkerExit) -> None:
        """Handles the report of a joiner that the process of its worker is gone."""
        self._ending.pop(event.worker_id, None)
        if on_exit := self._on_exit.pop(event.worker_id, None):
            on_exit(event)

    def kill(self, worker_id: str) -> None:
        """Gives a worker up. Its joiner ends the worker when it hears of that."""
        if self._on_exit.pop(worker_id, None):
            self._ending[worker_id] = self._clock()

    def forget(self, worker_id: str) -> None:
        """Forgets a worker whose end was reported by a launcher, not by its joiner."""
        self._ending.pop(worker_id, None)
        self._on_exit.pop(worker_id, None)

    def running(self) -> list[str]:
        """Returns the ids of the workers that have not ended and were not given up."""
        return list(self._on_exit)

    def ending(self) -> list[str]:
        """Returns the ids of the workers given up a short time ago whose end was not reported."""
        since = self._clock() - END_AWAITED_S
        return [worker_id for worker_id, at in self._ending.items() if at > since]

    def has_ended(self, worker_id: str) -> bool:
        """Returns whether the end of a worker was reported."""
        return worker_id not in self._ending and worker_id not in self._on_exit
