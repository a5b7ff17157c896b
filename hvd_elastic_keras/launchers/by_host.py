"""Brings together all workers of a job, each with the launcher that looks after it.

Workers that have come by themselves (`run --join`) have none: a joiner starts and ends each of
them, and `JoinedWorkers` keeps the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_elastic_keras.launchers.base import LOCALHOST, LaunchedWorker, Launcher, WorkerExit

END_AWAITED_S = 15.0
"""Seconds that the end of a job waits for a worker that was given up before.

The joiner of the worker ends it within `cli.join.joined_process.END_WITHIN_S`, unless its host is
gone.
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


class ByHost:
    """A launcher for this machine, one for other hosts if there are any, and the joined workers."""

    def __init__(
        self, local: Launcher, joined: JoinedWorkers, remote: Launcher | None = None
    ) -> None:
        self._local = local
        self._remote = remote
        self._joined = joined

    def launch(
        self, worker_id: str, host: str, on_exit: Callable[[WorkerExit], None]
    ) -> LaunchedWorker:
        """Starts a worker on a host. See `Launcher.launch`."""
        launcher = self._local if host == LOCALHOST else self._remote
        if launcher is None:
            raise OSError(f"nobody starts workers on {host}: they come by themselves there")
        return launcher.launch(worker_id, host, self._gone(on_exit))

    def adopt(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> LaunchedWorker | None:
        """Looks after a worker that an earlier launcher has started. See `Launcher.adopt`."""
        gone = self._gone(on_exit)
        found = (launcher.adopt(worker_id, gone) for launcher in self._launchers)
        return next((worker for worker in found if worker), None)

    def kill(self, worker_id: str) -> None:
        """Ends a worker at once, if one of the launchers or a joiner can."""
        for launcher in self._launchers:
            launcher.kill(worker_id)
        self._joined.kill(worker_id)

    def running(self) -> list[str]:
        """Returns the ids of the workers that have not ended."""
        known = [w for launcher in self._launchers for w in launcher.running()]
        return list(dict.fromkeys([*known, *self._joined.running(), *self._joined.ending()]))

    def close(self) -> None:
        """Closes the launchers, because the job is over."""
        for launcher in self._launchers:
            launcher.close()

    def _gone(self, on_exit: Callable[[WorkerExit], None]) -> Callable[[WorkerExit], None]:
        """Wraps `on_exit`: when a launcher reports the end of a worker, its joiner is forgotten."""

        def exited(event: WorkerExit) -> None:
            self._joined.forget(event.worker_id)
            on_exit(event)

        return exited

    @property
    def _launchers(self) -> list[Launcher]:
        return [self._local, *([self._remote] if self._remote else [])]
