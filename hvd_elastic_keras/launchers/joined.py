"""Workers that have come by themselves (`run --join`): somebody else starts and ends them."""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_elastic_keras.launchers.base import WorkerExit

END_AWAITED_S = 15.0
"""So long the end of a job waits for a worker that was given up before. Its joiner ends it within
`cli.joined_process.END_WITHIN_S`, unless its host is gone."""


class JoinedWorkers:
    """Who is there, as far as joiners have told.

    Args:
      clock: seconds of a steady clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._on_exit: dict[str, Callable[[WorkerExit], None]] = {}
        self._ending: dict[str, float] = {}
        """Workers that were given up, and when."""

    def watch(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> None:
        """From now on, this worker is there."""
        self._on_exit[worker_id] = on_exit

    def exited(self, event: WorkerExit) -> None:
        """A joiner tells that the process of its worker is gone."""
        self._ending.pop(event.worker_id, None)
        if on_exit := self._on_exit.pop(event.worker_id, None):
            on_exit(event)

    def kill(self, worker_id: str) -> None:
        """Gives it up: its joiner ends it when it hears of that."""
        if self._on_exit.pop(worker_id, None):
            self._ending[worker_id] = self._clock()

    def forget(self, worker_id: str) -> None:
        """It is gone, says somebody else than its joiner."""
        self._ending.pop(worker_id, None)
        self._on_exit.pop(worker_id, None)

    def running(self) -> list[str]:
        """Ids of those that have not ended, and were not given up."""
        return list(self._on_exit)

    def ending(self) -> list[str]:
        """Ids of those that were given up a short time ago, and of whose end nobody has told."""
        since = self._clock() - END_AWAITED_S
        return [worker_id for worker_id, at in self._ending.items() if at > since]

    def has_ended(self, worker_id: str) -> bool:
        """Whether its joiner has told of its end."""
        return worker_id not in self._ending and worker_id not in self._on_exit
