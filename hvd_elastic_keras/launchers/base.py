"""What a launcher offers to the master's controller."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from typing import Protocol

from hvd_elastic_keras.master.actions import Exited


@dataclasses.dataclass(frozen=True)
class LaunchedWorker:
    """A worker process that has been started."""

    host: str
    pid: int


class Launcher(Protocol):
    """Starts worker processes somewhere and reports when they end."""

    def launch(self, worker_id: str, on_exit: Callable[[Exited], None]) -> LaunchedWorker:
        """Starts a worker; `on_exit` is called once, in the event loop, when it has ended.

        Raises:
          OSError: the process cannot be started.
        """

    def terminate(self, worker_id: str) -> None:
        """Asks a worker to leave after its current step (SIGTERM)."""

    def kill(self, worker_id: str) -> None:
        """Ends a worker and everything it has started at once (SIGKILL)."""

    def running(self) -> list[str]:
        """Ids of the workers that have not ended."""


def exit_cause(return_code: int) -> str:
    """The end of a process in words.

    >>> exit_cause(-9), exit_cause(1)
    ('was killed by SIGKILL', 'failed with exit code 1')
    """
    if return_code >= 0:
        return f"failed with exit code {return_code}" if return_code else "ended with exit code 0"
    try:
        name = signal.Signals(-return_code).name
    except ValueError:
        name = f"signal {-return_code}"
    return f"was killed by {name}"
