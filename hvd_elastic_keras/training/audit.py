"""Writes ledgers of used examples while training goes on (`--audit`); see `ledger.py`.

All workers note every finished step; rank 0 writes it down. Should it die, the next rank 0 writes
what is missing from its own notes. Before newcomers get the state, everything up to it is on file,
so that they need no older notes.

Rank 0 can say which examples each worker had to use, because that follows from the position in the
training. That they have really read these, and no others, is what the digests of the ids show that
travel with the allreduce of the step.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import numpy as np
from pyroaring import BitMap64

from hvd_elastic_keras import ledger
from hvd_elastic_keras.data.pipeline import LocalBatch
from hvd_elastic_keras.ledger import Ids
from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.training.cursor import Cursor

log = logging.getLogger(__name__)
KEPT = 2000
"""Notes that a worker keeps; rank 0 lets half as many wait to be written."""
AT_ONCE = 200
INTERVAL_S = 0.5
"""So many notes, or those of so many seconds, are written together."""


@dataclasses.dataclass(frozen=True)
class FinishedStep:
    """What all workers know of a step.

    Attributes:
      step: number of the optimizer step, from 0.
      epoch, epoch_step: its place in the data.
      portions: sizes of the portions that it has taken, where the batch grows with the workers.
      first_portion: number of the first one.
      round, members: who has taken it, by rank.
      shares: micro-batches of a full global batch, by rank.
      num_examples: of the global batch.
      digest: of the examples that the workers have read.
    """

    step: int
    epoch: int
    epoch_step: int
    first_portion: int
    portions: Sequence[int]
    round: int
    members: Sequence[str]
    shares: Sequence[int]
    num_examples: int
    digest: int


def finished_step(
    cursor: Cursor, batch: LocalBatch, place: Assignment, shares: Sequence[int], digest: int
) -> FinishedStep:
    """The note of the step that was taken at `cursor`."""
    return FinishedStep(
        step=cursor.global_step,
        epoch=cursor.epoch,
        epoch_step=cursor.step,
        first_portion=cursor.portions,
        portions=batch.portions,
        round=place.round,
        members=place.members,
        shares=shares,
        num_examples=batch.part.num_examples_of_step,
        digest=digest,
    )


@dataclasses.dataclass(frozen=True)
class FinishedEpoch:
    """The end of an epoch, from optimizer step `first_step` on; see `ledger.Closed`."""

    epoch: int
    first_step: int
    steps: int
    whole: bool


Note = FinishedStep | FinishedEpoch


class Plan(Protocol):
    """Which examples had to be used; `PhaseRunner` knows it."""

    def planned_ids(self, steps: Sequence[FinishedStep]) -> list[list[Ids]]:
        """For each step, all of one epoch, the ids that each rank had to use."""

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        """All ids of an epoch; None if they are those of its steps."""


class Auditor:
    """Notes the steps of one training on every worker, and writes them on rank 0.

    Args:
      ledgers: the files.
      records: false if steps are not to be noted: the ledgers are of an earlier run, of which some
        steps may become void now.
    """

    def __init__(self, ledgers: Ledgers, records: bool = True) -> None:
        self._ledgers = ledgers
        self._records = records
        self._notes: collections.deque[Note] = collections.deque(maxlen=KEPT)
        self._writes = False
        self._thread: threading.Thread | None = None
        self._waiting: list[Note] = []
        """What is not on file yet, the first of it being written just now."""
        self._hurry = False
        self._closed = False
        self._changed = threading.Condition()

    def enter_round(self, rank: int, step: int, epoch: int, *, takes_up: bool) -> None:
        """Gets the files ready before newcomers get the state: on return all steps are on file.

        Args:
          rank: of this worker in the round.
          step, epoch: of the next optimizer step.
          takes_up: whether the state is new or from a checkpoint: what was written for later steps
            is void then.
        """
        self._writes = rank == 0
        if not self._writes:
            return
        with _at_no_cost_to_training():
            if takes_up:
                self._notes.clear()
                self._ledgers.resume(step, epoch)
            else:
                self._ledgers.write(self._ledgers.not_written(self._notes))

    def note(self, note: Note) -> None:
        """Takes a finished step or epoch; on rank 0 a thread writes it."""
        if self._records:
            self._notes.append(note)
        if not self._writes or not self._records:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="elastic-audit", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < KEPT // 2)
            self._waiting.append(note)
            if len(self._waiting) == AT_ONCE or isinstance(note, FinishedEpoch):
                self._hurry = True
                self._changed.notify_all()

    def flush(self) -> None:
        """Waits until everything noted is on file."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Waits as `flush` does; afterwards nothing is noted any more."""
        self.flush()
        self._closed = True

    def _run(self) -> None:
        while not self._closed:
            with self._changed:
                # Many at a time: waking up for each step costs more than writing it.
                self._changed.wait_for(lambda: self._hurry, timeout=INTERVAL_S)
                self._hurry = False
                notes = self._waiting[:]
            self._ledgers.write(notes)
            with self._changed:
                del self._waiting[: len(notes)]
                self._changed.notify_all()


class Ledgers:
    """The ledgers of one training on disk.

    Args:
      directory: where they go; it need not exist.
      plan: says which examples had to be used.
      tell: called with each ended epoch (from 0) and what its ledger says.
    """

    def __init__(
        self, directory: Path, plan: Plan, tell: Callable[[int, ledger.Account], None]
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._tell = tell

    def not_written(self, notes: Iterable[Note]) -> list[Note]:
        """Those that are not on file."""
        result = []
        for epoch, group in itertools.groupby(notes, lambda note: note.epoch):
            path = ledger.file_of(self._directory, epoch)
            steps, closed = ledger.counting(ledger.read(path) if path.exists() else [])
            for note in group:
                if isinstance(note, FinishedEpoch):
                    written = closed is not None
                else:
                    written = note.step in steps
                if not written:
                    result.append(note)
        return result

    def resume(self, step: int, epoch: int) -> None:
        """Makes void what was written for `step` and later, in `epoch` and later."""
        for path in ledger.epochs_in(self._directory):
            if ledger.epoch_of(path) > epoch:
                path.unlink()
        path = ledger.file_of(self._directory, epoch)
        if path.exists():
            self._append(path, [ledger.Resumed(step)])

    def write(self, notes: Iterable[Note]) -> None:
        """Appends steps; an epoch that has ended is judged. Never raises an error."""
        for (epoch, ended), group in itertools.groupby(
            notes, lambda note: (note.epoch, isinstance(note, FinishedEpoch))
        ):
            path = ledger.file_of(self._directory, epoch)
            with _at_no_cost_to_training():
                if ended:
                    self._close(path, epoch, *(n for n in group if isinstance(n, FinishedEpoch)))
                else:
                    steps = [n for n in group if isinstance(n, FinishedStep)]
                    self._append(path, self._lines(steps))

    def _lines(self, steps: Sequence[FinishedStep]) -> list[ledger.Line]:
        return [
            ledger.Step(
                step=step.step,
                round=step.round,
                examples=step.num_examples,
                ids={
                    member: ledger.packed(own)
                    # In the last step of an epoch there may be fewer portions than workers.
                    for member, own in zip(step.members, ids, strict=False)
                    if own.size
                },
                agreed=ledger.digest(np.concatenate(ids)) == step.digest,
            )
            for step, ids in zip(steps, self._plan.planned_ids(steps), strict=True)
        ]

    def _close(self, path: Path, epoch: int, end: FinishedEpoch) -> None:
        """Judges what is on file, and nothing else."""
        whole = self._plan.ids_of_epoch(epoch) if end.whole else None
        expected = "" if whole is None else ledger.packed(BitMap64(whole))
        closed = ledger.Closed(end.first_step, end.steps, end.whole, expected)
        account = ledger.judge([*(ledger.read(path) if path.exists() else []), closed])
        self._append(path, [msgspec.structs.replace(closed, verdict=account.verdict)])
        self._tell(epoch, account)

    def _append(self, path: Path, lines: Sequence[ledger.Line]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            _drop_unfinished_line(file)
            file.write(b"".join(map(ledger.encode, lines)))


@contextlib.contextmanager
def _at_no_cost_to_training() -> Iterator[None]:
    """Training is worth more than its ledger, which then lacks something and says so."""
    try:
        yield
    except Exception:  # whatever it is, training must not wait for this thread
        log.exception("the ledger cannot be written")


def _drop_unfinished_line(file: BinaryIO) -> None:
    """Cuts off what a killed writer has left after the last whole line."""
    end = file.seek(0, 2)
    start = end
    while start:
        size = min(start, 1 << 12)
        start -= size
        file.seek(start)
        found = file.read(size).rfind(b"\n")
        if found >= 0:
            start += found + 1
            break
    if start < end:
        file.truncate(start)
