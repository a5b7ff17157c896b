"""Workers that have come by themselves (`run --join`): somebody else starts and ends them."""

from __future__ import annotations

from collections.abc import Callable

from hvd_elastic_keras.launchers.base import WorkerExit


class JoinedWorkers:
    """Who is there, as far as joiners have told."""

    def __init__(self) -> None:
        self._on_exit: dict[str, Callable[[WorkerExit], None]] = {}

    def watch(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> None:
        """From now on, this worker is there."""
        self._on_exit[worker_id] = on_exit

    def exited(self, event: WorkerExit) -> None:
        """A joiner tells that the process of its worker is gone."""
        if on_exit := self._on_exit.pop(event.worker_id, None):
            on_exit(event)

    def kill(self, worker_id: str) -> None:
        """Waits for it no more: its joiner ends it when it hears that the job has given it up."""
        self._on_exit.pop(worker_id, None)

    def running(self) -> list[str]:
        """Ids of those that have not ended."""
        return list(self._on_exit)
