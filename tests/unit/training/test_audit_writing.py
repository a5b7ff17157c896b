"""Ledgers on disk, written by one rank 0 after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hvd_elastic_keras import ledger
from hvd_elastic_keras.ledger import Ids
from hvd_elastic_keras.training.audit import Auditor, FinishedEpoch, FinishedStep, Ledgers, Note

SIZE = 8
"""Examples of a step; three steps are an epoch."""


class InOrder:
    """A plan in which examples are taken as they come, half by each of two workers."""

    def planned_ids(self, steps: Sequence[FinishedStep]) -> list[list[Ids]]:
        return [np.split(np.arange(SIZE) + SIZE * step.epoch_step, 2) for step in steps]

    def ids_of_epoch(self, epoch: int) -> Iterable[int]:
        return range(3 * SIZE)


class Broken(InOrder):
    def planned_ids(self, steps: Sequence[FinishedStep]) -> list[list[Ids]]:
        raise ValueError("a bug")


def step(number: int) -> FinishedStep:
    epoch, in_epoch = divmod(number, 3)
    ids = np.arange(SIZE) + SIZE * in_epoch
    return FinishedStep(
        *(number, epoch, in_epoch, 0, (), 1, ("w0", "w1"), (1, 1), SIZE), ledger.digest(ids)
    )


def end(epoch: int) -> FinishedEpoch:
    return FinishedEpoch(epoch, 3 * epoch, 3, whole=True)


class Worker:
    """One process's auditor, and what it has told."""

    def __init__(self, directory: Path, plan: InOrder | None = None) -> None:
        self.told: list[tuple[int, str]] = []
        ledgers = Ledgers(directory, plan or InOrder(), self._tell)
        self.auditor = Auditor(ledgers)

    def _tell(self, epoch: int, account: ledger.Account) -> None:
        self.told.append((epoch, account.verdict))

    def enter(self, rank: int, number: int, takes_up: bool = False) -> None:
        self.auditor.enter_round(rank, number, number // 3, takes_up=takes_up)

    def note(self, *notes: Note) -> None:
        for note in notes:
            self.auditor.note(note)
        self.auditor.flush()


def verdicts(directory: Path) -> list[str]:
    return [ledger.judge(ledger.read(path)).verdict for path in ledger.epochs_in(directory)]


EXACT = "every example exactly once"
UNFINISHED = "no example twice so far; the epoch has not ended"


def test_rank_0_writes_and_tells(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.enter(0, 0, takes_up=True)
    worker.note(step(0), step(1), step(2), end(0), step(3))
    assert verdicts(tmp_path) == [EXACT, UNFINISHED]
    assert worker.told == [(0, EXACT)]
    worker.auditor.close()


def test_the_next_rank_0_writes_what_the_last_one_has_not(tmp_path: Path) -> None:
    first, second = Worker(tmp_path), Worker(tmp_path)
    first.enter(0, 0, takes_up=True)
    second.enter(1, 0)
    first.note(step(0))
    path = ledger.file_of(tmp_path, 0)
    path.write_bytes(path.read_bytes() + b'{"type":"st')  # it was killed while it wrote
    second.note(step(0), step(1), step(2), end(0), step(3))
    assert verdicts(tmp_path) == [UNFINISHED]
    second.enter(0, 4)
    assert verdicts(tmp_path) == [EXACT, UNFINISHED]
    assert [line.step for line in ledger.read(path)[:3]] == [0, 1, 2]  # type: ignore[union-attr]


def test_going_on_from_a_checkpoint_makes_later_steps_void(tmp_path: Path) -> None:
    first, second = Worker(tmp_path), Worker(tmp_path)
    first.enter(0, 0, takes_up=True)
    first.note(*map(step, range(3)), end(0), *map(step, range(3, 6)), end(1), step(6))
    second.enter(0, 4, takes_up=True)
    assert verdicts(tmp_path) == [EXACT, UNFINISHED]
    second.note(step(4), step(5), end(1))
    assert verdicts(tmp_path) == [EXACT, EXACT]


def test_a_run_without_audit_only_makes_void(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.enter(0, 0, takes_up=True)
    first.note(*map(step, range(5)))
    silent = Auditor(Ledgers(tmp_path, InOrder(), first._tell), records=False)
    silent.enter_round(0, 3, 1, takes_up=True)
    silent.note(step(3))
    silent.close()
    assert [len(ledger.judge(ledger.read(p)).steps) for p in ledger.epochs_in(tmp_path)] == [3, 0]


@pytest.mark.timeout(20)
def test_an_error_while_writing_stops_nobody(tmp_path: Path) -> None:
    worker = Worker(tmp_path, Broken())
    worker.enter(0, 0, takes_up=True)
    worker.note(*map(step, range(3)), end(0))
    worker.auditor.close()
    assert worker.told == [(0, "24 missing: 0-23; no record of step 0-2")]
