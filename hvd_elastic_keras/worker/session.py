"""A worker's membership: join, enter a round, learn of changes, leave.

`Session` is the interface for the training. `SoloSession` is for a process that was started without
a launcher, `ElasticSession` for a worker of a job.

A process may train several times, each time with `join`, `enter` (once per round) and `finish`. All
processes of a job run the same script, so that their trainings correspond by number. A process that
comes too late for a training, because it is new or was slow, gets a `TrainingOverError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import msgspec

from hvd_elastic_keras.common import events, protocol


class Abortable(Protocol):
    """The part of the communicator that a session uses."""

    in_collective: bool
    """Whether the training thread takes a step, or waits with the other workers."""

    def computing(self) -> bool:
        """Whether this worker computes its part of a step, for which the others may wait."""

    def abort(self, through_round: int) -> bool:
        """Makes collectives of old rounds fail. Returns whether to call this again."""


class Session(Protocol):
    """The interface of membership for the training."""

    @property
    def training(self) -> int:
        """Number of the training last begun by this process; 0 before the first."""

    @property
    def term(self) -> Callable[[], int] | None:
        """Function that returns the term of the newest master that has answered.

        None if there is no master.
        """

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

    def running(self, step: int) -> None:
        """Tells the master that training goes on."""

    def at(self, phase: str, step: int, progress: int) -> None:
        """Notes the position for the heartbeat."""

    def passes(self, phase: str) -> None:
        """Begins a part of a phase, "syncing" or "checkpointing". Waits there if chaos wants it."""

    def reading(self, position: protocol.InputPosition) -> None:
        """Notes the batch of the next step, if batches can only be read from the front."""

    def others_read(self, training: int) -> protocol.InputPosition | None:
        """Returns where other workers of this training read; None if there are none.

        Call this from one thread only.
        """

    def others_train(self, training: int) -> bool:
        """Whether other workers are in this training already. Call this from one thread only."""

    @property
    def leaving(self) -> bool:
        """Whether this worker has to leave the job."""

    @property
    def change_pending(self) -> bool:
        """Whether all workers have to leave the round after the current step."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Sets a function to call in a background thread when `change_pending` may have changed."""

    def show(self, text: str, progress: protocol.Progress | None = None) -> None:
        """Shows text of rank 0 on the terminal of the launcher.

        With `progress`, a launcher that draws progress shows it in place of the text.
        """

    def record(self, entry: events.WorkerEntry) -> None:
        """Adds an entry to the job's `events.jsonl`."""

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        """Shows a line, if there is a text, and adds an entry, if there is one, once per training.

        If several workers tell the same, it counts once, also with different `prefix`es, which
        stand before the text.
        """

    def finish(self) -> None:
        """Tells the master that this training is done. Call it after the last barrier of all."""

    def refuse(self, message: str) -> None:
        """Tells the master of a wrong configuration, just before this process ends.

        The job ends with this message; no worker is started again.
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

    leaving = False
    change_pending = False
    term = None

    def __init__(self) -> None:
        self._training = 0

    @property
    def training(self) -> int:
        """Number of the training last begun by this process; 0 before the first."""
        return self._training

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

    def running(self, step: int) -> None:
        """Does nothing: there is no master."""

    def at(self, phase: str, step: int, progress: int) -> None:
        """Does nothing: there is no master."""

    def passes(self, phase: str) -> None:
        """Does nothing: chaos needs a job."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Does nothing: the membership never changes."""

    def reading(self, position: protocol.InputPosition) -> None:
        """Does nothing: there is no master."""

    def others_read(self, training: int) -> None:
        """Returns None: there are no other workers."""

    def others_train(self, training: int) -> bool:
        """Returns False: there are no other workers."""
        return False

    def show(self, text: str, progress: protocol.Progress | None = None) -> None:
        """Writes to this process's own terminal."""
        print(text, end="", flush=True)

    def record(self, entry: events.WorkerEntry) -> None:
        """Does nothing: there is no event log without a job."""

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        """Shows the line."""
        if text:
            self.show(f"{prefix}{text}\n")

    def finish(self) -> None:
        """Does nothing: there is no master."""

    def refuse(self, message: str) -> None:
        """Does nothing: there is no master."""
