"""A worker's membership: join, enter a round, learn of changes, leave.

`Session` is what training needs to know of it. `SoloSession` is the world of a process that was
started without a launcher; `ElasticSession` that of a member of a job.

A process may train several times, each time with `join`, `enter` (once per round) and `finish`. All
processes of a job run the same script, so that their trainings correspond by number. One that comes
too late for a training, because it is new or was slow, is told so by `TrainingOverError`.
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
    """Whether the training thread takes a step, or waits with the others."""

    def computing(self) -> bool:
        """Whether it computes its part of a step, for which the others may wait."""

    def abort(self, through_round: int) -> bool:
        """Makes collectives of old rounds fail; returns whether to call again."""


class Session(Protocol):
    """What training needs to know of membership."""

    @property
    def training(self) -> int:
        """Number of the training that this process has last begun; 0 before the first."""

    @property
    def term(self) -> Callable[[], int] | None:
        """Gives the term of the newest master that has answered; None where there are none."""

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training of this process and tells the master that it is warm.

        `num_micro_batches` is the largest useful number of workers; 0 means any number. If `each`,
        every worker computes so many, and any number is of use.
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
        """Comes to a part of a phase, "syncing" or "checkpointing", where chaos may want it."""

    def reading(self, position: protocol.InputPosition) -> None:
        """Notes which batch the next step takes, where batches can only be read from the front."""

    def others_read(self, training: int) -> protocol.InputPosition | None:
        """Where others read who are in this training; None if there are none.

        To be called from one thread only.
        """

    def others_train(self, training: int) -> bool:
        """Whether others are in this training already. To be called from one thread only."""

    @property
    def leaving(self) -> bool:
        """Whether this worker has to leave the job."""

    @property
    def change_pending(self) -> bool:
        """Whether everybody has to leave the round after the current step."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Asks for a call, in a background thread, whenever `change_pending` may have changed."""

    def show(self, text: str, progress: protocol.Progress | None = None) -> None:
        """Shows text of rank 0 on the terminal of the launcher.

        With `progress`, a launcher that draws it shows that in place of the text.
        """

    def record(self, entry: events.WorkerEntry) -> None:
        """Adds an entry to the job's `events.jsonl`."""

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        """Once per training, shows a line, if there is a text, and adds an entry, if there is one.

        Which worker tells it does not matter, nor does `prefix`, which stands before the text.
        """

    def finish(self) -> None:
        """Tells the master that this training is done: after the last barrier with all members."""

    def refuse(self, message: str) -> None:
        """Tells the master, just before this process ends, what is configured wrongly.

        The job ends with this message; nobody is started again.
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
    """One process, no master: the only round never changes."""

    leaving = False
    change_pending = False
    term = None

    def __init__(self) -> None:
        self._training = 0

    @property
    def training(self) -> int:
        """Number of the training that this process has last begun; 0 before the first."""
        return self._training

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training. Nobody to tell."""
        self._training += 1

    def enter(self, report: EntryReport) -> protocol.Assignment:
        """The place of a process that is alone in the world."""
        return msgspec.structs.replace(protocol.ALONE, root_has_state=report.has_state)

    def running(self, step: int) -> None:
        """Nobody to tell."""

    def at(self, phase: str, step: int, progress: int) -> None:
        """Nobody to tell."""

    def passes(self, phase: str) -> None:
        """Nobody breaks it."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Nothing ever changes."""

    def reading(self, position: protocol.InputPosition) -> None:
        """Nobody to tell."""

    def others_read(self, training: int) -> None:
        """There are no others."""

    def others_train(self, training: int) -> bool:
        """There are no others."""
        return False

    def show(self, text: str, progress: protocol.Progress | None = None) -> None:
        """Writes to this process's own terminal."""
        print(text, end="", flush=True)

    def record(self, entry: events.WorkerEntry) -> None:
        """There is no event log without a job."""

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        """Shows the line."""
        if text:
            self.show(f"{prefix}{text}\n")

    def finish(self) -> None:
        """Ends the training. Nobody to tell."""

    def refuse(self, message: str) -> None:
        """Nobody to tell."""
