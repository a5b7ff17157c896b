"""Writes ledgers of used examples while training goes on (`--audit`); see `audit/ledger_file.py`.

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
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from hvd_elastic_keras.audit import ledger_file
from hvd_elastic_keras.audit.finished import FinishedEpoch, FinishedStep, Note, Plan
from hvd_elastic_keras.audit.verdict import Account, counting, judge
from hvd_elastic_keras.data.plan import example_ids

log = logging.getLogger(__name__)
KEPT = 2000
"""Notes that a worker keeps; rank 0 lets half as many wait to be written."""
AT_ONCE = 200
INTERVAL_S = 0.5
"""So many notes, or those of so many seconds, are written together."""


class Auditor:
    """Notes the steps of one training on every worker, and writes them on rank 0.

    Args:
      ledgers: the files.
      records: false if steps are not to be noted: the ledgers are of an earlier run, of which some
        steps may become void now.
    """

    def __init__(self, ledgers: Ledgers, records: bool = True) -> None:
        self._ledgers = ledgers
        self.records = records
        self._notes: collections.deque[Note] = collections.deque(maxlen=KEPT)
        self._writes = False
        self._thread: threading.Thread | None = None
        self._waiting: list[Note] = []
        """What is not on file yet, the first of it being written just now."""
        self._noted = 0
        self._on_file = 0
        """So many of all that were noted are on file for sure, from the first one on."""
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
        if takes_up:
            self._notes.clear()
            self._on_file = self._noted
            self._ledgers.resume(step, epoch)
            return
        # Never more than the newest notes, nor anything that this worker has written itself: going
        # on after a change takes no longer late in an epoch.
        left = self._noted - self._on_file
        if self._ledgers.complete(list(self._notes)[-left:] if left else []):
            self._on_file = self._noted
        if self._ledgers.unjudged:
            self._start()
            self._wake()

    def note(self, note: Note) -> None:
        """Takes a finished step or epoch; on rank 0 a thread writes it."""
        if not self.records:
            return
        if self._writes:
            self._start()
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < KEPT // 2)
            self._notes.append(note)
            self._noted += 1
            if not self._writes:
                return
            self._waiting.append(note)
            if len(self._waiting) == AT_ONCE or isinstance(note, FinishedEpoch):
                self._wake()

    def flush(self, *, judged: bool = True) -> None:
        """Waits until everything noted is on file, and ended epochs are judged if asked for."""
        with self._changed:
            self._wake()
            self._changed.wait_for(
                lambda: not self._waiting and not (judged and self._ledgers.unjudged)
            )

    def close(self) -> None:
        """Waits as `flush` does; afterwards nothing is noted any more."""
        self.flush()
        self._closed = True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="elastic-audit", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        with self._changed:
            self._hurry = True
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._closed:
            with self._changed:
                # Many at a time: waking up for each step costs more than writing it.
                self._changed.wait_for(lambda: self._hurry, timeout=INTERVAL_S)
                self._hurry = False
                notes = self._waiting[:]
                first = self._noted - len(notes)
            written = self._ledgers.write(notes)
            with self._changed:
                if written and first == self._on_file:
                    self._on_file += len(notes)
                del self._waiting[: len(notes)]
                self._changed.notify_all()
            self._ledgers.judge_ended()
            with self._changed:
                self._changed.notify_all()


class Ledgers:
    """The ledgers of one training on disk.

    Args:
      directory: where they go; it need not exist.
      plan: says which examples had to be used.
      tell: called with each ended epoch (from 0) and what its ledger says; by the next rank 0
        once more, because nobody knows whether the last one had time to tell it.
      warn: called, once, with a line for people when writing has failed.
    """

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        tell: Callable[[int, Account], None],
        warn: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._tell = tell
        self._warn = warn
        self._has_failed = False
        self.unjudged: list[FinishedEpoch] = []
        """Ended epochs that are on file, but for the verdict, or whose verdict may be unknown."""

    def complete(self, notes: Sequence[Note]) -> bool:
        """Writes those that are not on file; returns as `write` does."""
        written = False
        with self._at_no_cost_to_training():
            groups = itertools.groupby(notes, lambda note: note.epoch)
            missing = [n for epoch, group in groups for n in self._not_written(epoch, list(group))]
            judged = [n for n in notes if isinstance(n, FinishedEpoch) and n not in missing]
            # Only the newest: earlier ones were told long before.
            self.unjudged += judged[-1:]
            written = self.write(missing)
        return written

    def _not_written(self, epoch: int, notes: Sequence[Note]) -> list[Note]:
        """Those of one epoch that are not on file, or on file as another round has taken them.

        Rank 0 may have finished a step, and died, that failed for the others: they take it again,
        perhaps with other examples.
        """
        path = ledger_file.file_of(self._directory, epoch)
        steps, closed = counting(ledger_file.lines_from(path, _first_step_of(notes[0])))
        result: list[Note] = []
        for note in notes:
            if isinstance(note, FinishedStep):
                place = steps.get(note.step)
                written = place is not None and place.round >= note.round
            else:
                # A step that comes after the end in the file makes that void.
                written = not result and closed is not None and _is_judged_end(closed, note)
            if not written:
                result.append(note)
        return result

    def resume(self, step: int, epoch: int) -> None:
        """Makes void what was written for `step` and later, in `epoch` and later."""
        with self._at_no_cost_to_training():
            for path in ledger_file.epochs_in(self._directory):
                if ledger_file.epoch_of(path) > epoch:
                    path.unlink()
            path = ledger_file.file_of(self._directory, epoch)
            if path.exists():
                self._append(path, [ledger_file.Resumed(step)])

    def write(self, notes: Iterable[Note]) -> bool:
        """Appends steps, and the ends of epochs, without the verdict. Never raises an error.

        Returns:
          Whether everything is on file.
        """
        everything = True
        for (epoch, ended), group in itertools.groupby(
            notes, lambda note: (note.epoch, isinstance(note, FinishedEpoch))
        ):
            path = ledger_file.file_of(self._directory, epoch)
            written = False
            with self._at_no_cost_to_training():
                if ended:
                    ends = [n for n in group if isinstance(n, FinishedEpoch)]
                    self._append(path, [self._closed(end) for end in ends])
                    self.unjudged += ends
                else:
                    steps = [n for n in group if isinstance(n, FinishedStep)]
                    self._append(path, self._lines(steps))
                written = True
            everything = everything and written
        return everything

    def judge_ended(self) -> None:
        """Judges the `unjudged`: what is on file, and nothing else. That takes a while."""
        while self.unjudged:
            with self._at_no_cost_to_training():
                epoch = self.unjudged[0].epoch
                path = ledger_file.file_of(self._directory, epoch)
                account = judge(ledger_file.LinesOf(path))
                if account.end is not None:
                    if account.end.verdict != account.verdict:
                        verdict = msgspec.structs.replace(account.end, verdict=account.verdict)
                        self._append(path, [verdict])
                    self._tell(epoch, account)
            del self.unjudged[0]

    def _lines(self, steps: Sequence[FinishedStep]) -> list[ledger_file.Line]:
        return [
            ledger_file.Step(
                step=step.step,
                round=step.round,
                examples=step.num_examples,
                ids={
                    member: example_ids.packed(own)
                    # In the last step of an epoch there may be fewer worker batches than workers.
                    for member, own in zip(step.members, ids, strict=False)
                    if own.size
                },
                agreed=example_ids.digest(np.concatenate(ids)) == step.digest,
            )
            for step, ids in zip(steps, self._plan.planned_ids(steps), strict=True)
        ]

    def _closed(self, end: FinishedEpoch) -> ledger_file.Closed:
        whole = self._plan.ids_of_epoch(end.epoch) if end.whole else None
        expected = "" if whole is None else example_ids.packed(whole)
        return ledger_file.Closed(end.first_step, end.steps, end.whole, expected)

    def _append(self, path: Path, lines: Sequence[ledger_file.Line]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            _drop_unfinished_line(file)
            file.write(b"".join(map(ledger_file.encode, lines)))

    @contextlib.contextmanager
    def _at_no_cost_to_training(self) -> Iterator[None]:
        """Training is worth more than its ledger, which then lacks something and says so."""
        try:
            yield
        except Exception as error:  # whatever it is, training must not wait for this thread
            log.exception("the ledger cannot be written")
            if self._has_failed:
                return
            self._has_failed = True
            with contextlib.suppress(Exception):
                self._warn(
                    f"the ledger in {self._directory} cannot be written: {_in_one_line(error)}. "
                    "Training goes on; `ctl audit` names what the ledger lacks."
                )


def _first_step_of(note: Note) -> int:
    """The first step of which nothing need be known but for this note and later ones."""
    return note.step if isinstance(note, FinishedStep) else note.first_step + note.steps


def _is_judged_end(closed: ledger_file.Closed, end: FinishedEpoch) -> bool:
    written = (closed.first_step, closed.steps, closed.whole)
    return bool(closed.verdict) and written == (end.first_step, end.steps, end.whole)


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")


def _drop_unfinished_line(file: BinaryIO) -> None:
    """Cuts off what a killed writer has left after the last whole line."""
    end = file.seek(0, 2)
    whole = 0
    for start, block in ledger_file.blocks_backwards(file):
        if b"\n" in block:
            whole = start + block.rindex(b"\n") + 1
            break
    if whole < end:
        file.truncate(whole)
