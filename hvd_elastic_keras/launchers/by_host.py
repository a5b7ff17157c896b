"""Brings together all workers of a job, each with the launcher that looks after it."""

from __future__ import annotations

from collections.abc import Callable

from hvd_elastic_keras.launchers.base import LOCALHOST, LaunchedWorker, Launcher, WorkerExit
from hvd_elastic_keras.launchers.joined import JoinedWorkers


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
