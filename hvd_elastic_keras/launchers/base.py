"""The interface between a launcher and the master's controller."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

LOCALHOST = "localhost"
"""The name of this machine as a host of a job."""


class WorkerExit(msgspec.Struct, frozen=True, tag=True):
    """The end of a worker process.

    Attributes:
      return_code: return code as in `subprocess`: a negative one is the signal that killed the
        worker. None if nobody knows it, because the host or the pod is gone.
      reason: text that follows the worker's id in a sentence; empty if only the return code is
        known.
      taken: whether the worker has lost its machine (preempted, deleted, lost). This is no failure,
        and another worker takes its place.
    """

    worker_id: str
    return_code: int | None
    reason: str = ""
    taken: bool = False

    @property
    def failed(self) -> bool:
        """Whether the worker did not end as it should."""
        return self.return_code != 0

    @property
    def by_own_error(self) -> bool:
        """Whether its own program ended it with an error; false if another process killed it."""
        return self.return_code is not None and self.return_code > 0 and not self.taken


@dataclasses.dataclass(frozen=True)
class LaunchedWorker:
    """A worker process that has been started."""

    host: str
    pid: int


class Launcher(Protocol):
    """Starts worker processes somewhere and reports when they end."""

    def launch(
        self, worker_id: str, host: str, on_exit: Callable[[WorkerExit], None]
    ) -> LaunchedWorker:
        """Starts a worker on a host. Its end calls `on_exit` once, in the event loop.

        Raises:
          OSError: the process cannot be started.
        """

    def adopt(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> LaunchedWorker | None:
        """Looks after a worker that an earlier launcher of the job has started.

        If the worker has ended meanwhile, `on_exit` is called at once. Returns None if the worker
        was never started.
        """

    def kill(self, worker_id: str) -> None:
        """Ends a worker and all processes that it has started at once (SIGKILL)."""

    def running(self) -> list[str]:
        """Returns the ids of the workers that have not ended."""

    def close(self) -> None:
        """Ends the job: removes all notes by which another launcher could adopt its workers."""


def exit_cause(return_code: int | None) -> str:
    """Returns the end of a process in words.

    >>> exit_cause(-9), exit_cause(1)
    ('was killed by SIGKILL', 'failed with exit code 1')
    """
    if return_code is None:
        return "is gone, with an exit code that nobody knows"
    if return_code >= 0:
        return f"failed with exit code {return_code}" if return_code else "ended with exit code 0"
    try:
        name = signal.Signals(-return_code).name
    except ValueError:
        name = f"signal {-return_code}"
    return f"was killed by {name}"


@dataclasses.dataclass(frozen=True)
class WorkerStart:
    """How workers start.

    Attributes:
      host: the host on which they start by default.
      first_number: the number of the first one.
      prepared: awaited before one starts on this machine.
    """

    host: str = LOCALHOST
    first_number: int = 0
    prepared: Callable[[], Awaitable[object]] | None = None


ON_THIS_HOST = WorkerStart()
