"""Writes ledgers of used examples while training goes on (`--audit`); see `audit/ledger_file.py`.

All workers note every finished step, and rank 0 writes the notes to files. If rank 0 dies, the next
rank 0 writes the missing steps from its own notes. Before newcomers get the state, all steps up to
this state are on file. So newcomers need no older notes.

Rank 0 knows which examples each worker had to use, because that follows from the position in the
training. Digests of the ids travel with the allreduce of the step. They show that the workers have
really read these examples, and no others.
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
"""Notes that a worker keeps. On rank 0, up to half as many wait to be written."""
AT_ONCE = 200
INTERVAL_S = 0.5
"""`AT_ONCE` notes, or the notes of `INTERVAL_S` seconds, are written together."""


class Auditor:
    """Notes the steps of one training on every worker, and writes them on rank 0.

    Args:
      ledgers: the ledgers to write.
      records: whether to note steps. False if the ledgers are of an earlier run: then some of
        their steps may become void, and nothing else changes.
    """

    def __init__(self, ledgers: Ledgers, records: bool = True) -> None:
        self._ledgers = ledgers
        self.records = records
        self._notes: collections.deque[Note] = collections.deque(maxlen=KEPT)
        self._writes = False
        self._thread: threading.Thread | None = None
        self._waiting: list[Note] = []
        """Notes that are not on file yet. The first of them may be being written right now."""
        self._noted = 0
        self._on_file = 0
        """Number of notes, counted from the first one, that are on file for sure."""
        self._hurry = False
        self._closed = False
        self._changed = threading.Condition()

    def enter_round(self, rank: int, step: int, epoch: int, *, starts_state: bool) -> None:
        """Prepares the files before newcomers get the state. On return, all steps are on file.

        Args:
          rank: rank of this worker in the round.
          step, epoch: number and epoch of the next optimizer step.
          starts_state: whether the state is new or from a checkpoint. If so, lines about later
            steps are void.
        """
        self._writes = rank == 0
        if not self._writes:
            return
        if starts_state:
            self._notes.clear()
            self._on_file = self._noted
            self._ledgers.resume(step, epoch)
            return
        # Only the newest notes, and nothing that this worker has written itself. So going on after
        # a change takes no longer late in an epoch.
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
        """Waits until everything noted is on file and, if `judged`, ended epochs are judged."""
        with self._changed:
            self._wake()
            self._changed.wait_for(
                lambda: not self._waiting and not (judged and self._ledgers.unjudged)
            )

    def close(self) -> None:
        """Waits as `flush` does. Afterwards nothing is written any more."""
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
      directory: directory of the ledgers; it need not exist.
      plan: says which examples had to be used.
      tell: called with each ended epoch (from 0) and what its ledger says. The next rank 0 calls
        it once more, because nobody knows whether the last rank 0 had time to tell it.
      warn: called once with a line for people when writing has failed.
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
        """Ended epochs on file without a verdict, or with a verdict that may not be told yet."""

    def complete(self, notes: Sequence[Note]) -> bool:
        """Writes the notes that are not on file; returns the same as `write`."""
        written = False
        with self._at_no_cost_to_training():
            groups = itertools.groupby(notes, lambda note: note.epoch)
            missing = [n for epoch, group in groups for n in self._not_written(epoch, list(group))]
            judged = [n for n in notes if isinstance(n, FinishedEpoch) and n not in missing]
            # Only the newest epoch: earlier ones were told long before.
            self.unjudged += judged[-1:]
            written = self.write(missing)
        return written

    def _not_written(self, epoch: int, notes: Sequence[Note]) -> list[Note]:
        """Returns the notes of one epoch that are not on file, or on file from an earlier round.

        Rank 0 may have finished a step and died while the step failed for the others. They take it
        again, perhaps with other examples.
        """
        path = ledger_file.file_of(self._directory, epoch)
        steps, closed = counting(ledger_file.lines_from(path, _first_step_of(notes[0])))
        result: list[Note] = []
        for note in notes:
            if isinstance(note, FinishedStep):
                place = steps.get(note.step)
                written = place is not None and place.round >= note.round
            else:
                # A step that comes after the epoch's end in the file makes that end void.
                written = not result and closed is not None and _is_judged_end(closed, note)
            if not written:
                result.append(note)
        return result

    def resume(self, step: int, epoch: int) -> None:
        """Makes all lines about `step` and later steps void, in `epoch` and later epochs."""
        with self._at_no_cost_to_training():
            for path in ledger_file.epochs_in(self._directory):
                if ledger_file.epoch_of(path) > epoch:
                    path.unlink()
            path = ledger_file.file_of(self._directory, epoch)
            if path.exists():
                self._append(path, [ledger_file.Resumed(step)])

    def write(self, notes: Iterable[Note]) -> bool:
        """Appends steps, and the ends of epochs without their verdicts. Never raises an error.

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
        """Judges the `unjudged` epochs by what is on file, and nothing else. This takes a while."""
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
        """Turns an error into a warning, because training is worth more than its ledger.

        The ledger then lacks something, and `ctl audit` says so.
        """
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
    """Returns the first step whose lines matter for this note and later notes."""
    return note.step if isinstance(note, FinishedStep) else note.first_step + note.steps


def _is_judged_end(closed: ledger_file.Closed, end: FinishedEpoch) -> bool:
    written = (closed.first_step, closed.steps, closed.whole)
    return bool(closed.verdict) and written == (end.first_step, end.steps, end.whole)


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")


def _drop_unfinished_line(file: BinaryIO) -> None:
    """Cuts off the unfinished line that a killed writer has left at the end."""
    end = file.seek(0, 2)
    whole = 0
    for start, block in ledger_file.blocks_backwards(file):
        if b"\n" in block:
            whole = start + block.rindex(b"\n") + 1
            break
    if whole < end:
        file.truncate(whole)
