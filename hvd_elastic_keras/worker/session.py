"""A worker's membership in trainings: join, enter a round, learn of changes, finish.

`Session` is the interface for the training. `SoloSession` is for a process that was started without
a launcher, `ElasticSession` for a worker of a job. What a session reports goes through its
`Reporter`.

A process may train several times, each time with `join`, `enter` (once per round) and `finish`. All
processes of a job run the same script, so that their trainings correspond by number. A process that
comes too late for a training, because it is new or was slow, gets a `TrainingOverError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import msgspec

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.worker.abortable import Abortable
from hvd_elastic_keras.worker.reporter import Reporter, TerminalReporter


class Session(Protocol):
    """The interface of membership for the training."""

    @property
    def training(self) -> int:
        """Number of the training last begun by this process; 0 before the first."""

    @property
    def reporter(self) -> Reporter:
        """Tells the master, the event log and people what this worker does."""

    @property
    def change_pending(self) -> bool:
        """Whether all workers have to leave the round after the current step."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Sets a function to call in a background thread when `change_pending` may have changed."""

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training of this process and tells the master that it is warm.

        `num_micro_batches` is the largest useful number of workers; 0 means any number. If `each`,
        every worker computes this many micro-batches, and any number of workers is of use.
        """

    def enter(self, report: EntryReport) -> protocol.Assignment:
        """Waits for a place in the next round.

        Raises:
          TrainingOverError: the job has finished this training already.
          WorkerLeavingError: this worker has to leave instead.
          MasterUnreachableError: there is no master any more.
        """

    def running(self, step: int, phase: str) -> None:
        """Confirms that this worker trains, or evaluates, in the round that it has entered."""

    def finish(self, *, raised: bool = False) -> None:
        """Tells the master that this training is done. Call it after the last barrier of all.

        Args:
          raised: whether an error of callbacks, which the script may catch, has ended it.
        """


@dataclasses.dataclass(frozen=True)
class EntryReport:
    """The committed state with which a worker asks for a place; see `protocol.EnterRequest`."""

    has_state: bool
    progress: int
    step: int
    failure: str = ""
    idle_s: float = 0.0


class SoloSession:
    """The session of a single process without a master. Its only round never changes."""

    change_pending = False

    def __init__(self) -> None:
        self._training = 0
        self._reporter = TerminalReporter()

    @property
    def training(self) -> int:
        """Number of the training last begun by this process; 0 before the first."""
        return self._training

    @property
    def reporter(self) -> Reporter:
        """Writes to this process's own terminal."""
        return self._reporter

    def on_change(self, call: Callable[[], None]) -> None:
        """Does nothing: the membership never changes."""

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training. Tells nobody: there is no master."""
        self._training += 1

    def enter(self, report: EntryReport) -> protocol.Assignment:
        """Returns the place of a process that is alone."""
        return msgspec.structs.replace(protocol.ALONE, root_has_state=report.has_state)

    def running(self, step: int, phase: str) -> None:
        """Does nothing: there is no master."""

    def finish(self, *, raised: bool = False) -> None:
        """Does nothing: there is no master."""
