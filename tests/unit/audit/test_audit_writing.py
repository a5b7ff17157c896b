"""Ledgers on disk, written by one rank 0 after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hvd_elastic_keras.audit import ledger_file, recorder
from hvd_elastic_keras.audit.finished import FinishedEpoch, FinishedStep, Note
from hvd_elastic_keras.audit.recorder import Auditor, Ledgers
from hvd_elastic_keras.audit.verdict import Account, judge
from hvd_elastic_keras.data.plan import example_ids
from hvd_elastic_keras.data.plan.example_ids import Ids

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
        *(number, epoch, in_epoch, 0, (), 1, ("w0", "w1"), (1, 1), SIZE), example_ids.digest(ids)
    )


def end(epoch: int) -> FinishedEpoch:
    return FinishedEpoch(epoch, 3 * epoch, 3, whole=True)


class Worker:
    """One process's auditor, and what it has told."""

    def __init__(self, directory: Path, plan: InOrder | None = None) -> None:
        self.told: list[tuple[int, str]] = []
        self.warnings: list[str] = []
        ledgers = Ledgers(directory, plan or InOrder(), self._tell, self.warnings.append)
        self.auditor = Auditor(ledgers)

    def _tell(self, epoch: int, account: Account) -> None:
        self.told.append((epoch, account.verdict))

    def enter(self, rank: int, number: int, starts_state: bool = False) -> None:
        self.auditor.enter_round(rank, number, number // 3, starts_state=starts_state)

    def note(self, *notes: Note) -> None:
        for note in notes:
            self.auditor.note(note)
        self.auditor.flush()


def verdicts(directory: Path) -> list[str]:
    return [judge(ledger_file.LinesOf(path)).verdict for path in ledger_file.epochs_in(directory)]


EXACT = "every example exactly once"
UNFINISHED = "no example twice so far; the epoch has not ended"


def test_rank_0_writes_and_tells(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.enter(0, 0, starts_state=True)
    worker.note(step(0), step(1), step(2), end(0), step(3))
    assert verdicts(tmp_path) == [EXACT, UNFINISHED]
    assert worker.told == [(0, EXACT)]
    worker.auditor.close()


def test_the_next_rank_0_writes_what_the_last_one_has_not(tmp_path: Path) -> None:
    first, second = Worker(tmp_path), Worker(tmp_path)
    first.enter(0, 0, starts_state=True)
    second.enter(1, 0)
    first.note(step(0))
    path = ledger_file.file_of(tmp_path, 0)
    path.write_bytes(path.read_bytes() + b'{"type":"st')  # it was killed while it wrote
    second.note(step(0), step(1), step(2), end(0), step(3))
    assert verdicts(tmp_path) == [UNFINISHED]
    second.enter(0, 4)
    assert verdicts(tmp_path) == [EXACT, UNFINISHED]
    assert [line.step for line in list(ledger_file.LinesOf(path))[:3]] == [0, 1, 2]  # type: ignore[union-attr]


def test_going_on_from_a_checkpoint_makes_later_steps_void(tmp_path: Path) -> None:
    first, second = Worker(tmp_path), Worker(tmp_path)
    first.enter(0, 0, starts_state=True)
    first.note(*map(step, range(3)), end(0), *map(step, range(3, 6)), end(1), step(6))
    second.enter(0, 4, starts_state=True)
    assert verdicts(tmp_path) == [EXACT, UNFINISHED]
    second.note(step(4), step(5), end(1))
    assert verdicts(tmp_path) == [EXACT, EXACT]


def test_a_run_without_audit_only_makes_void(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.enter(0, 0, starts_state=True)
    first.note(*map(step, range(5)))
    silent = Auditor(Ledgers(tmp_path, InOrder(), first._tell, print), records=False)
    silent.enter_round(0, 3, 1, starts_state=True)
    silent.note(step(3))
    silent.close()
    assert [len(judge(ledger_file.LinesOf(p)).steps) for p in ledger_file.epochs_in(tmp_path)] == [
        3,
        0,
    ]


@pytest.mark.timeout(20)
def test_an_error_while_writing_stops_nobody(tmp_path: Path) -> None:
    worker = Worker(tmp_path, Broken())
    worker.enter(0, 0, starts_state=True)
    worker.note(*map(step, range(3)), end(0))
    worker.auditor.close()
    assert worker.told == [(0, "24 missing: 0-23; no record of step 0-2")]
    assert worker.warnings == [
        f"the ledger in {tmp_path} cannot be written: ValueError: a bug. "
        "Training goes on; `ctl audit` names what the ledger lacks."
    ]


@pytest.mark.timeout(20)
def test_what_could_not_be_written_is_written_after_the_next_change(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    directory.write_text("")  # a file is in the way
    worker = Worker(directory)
    worker.enter(0, 0, starts_state=True)
    worker.note(step(0), step(1))
    directory.unlink()
    worker.note(step(2), end(0))
    assert verdicts(directory) == ["16 missing: 0-15; no record of step 0-1"]
    worker.enter(0, 3)
    assert verdicts(directory) == [EXACT]
    worker.auditor.close()


class Growing(InOrder):
    """A plan in which each worker of a step takes a batch of four examples."""

    def planned_ids(self, steps: Sequence[FinishedStep]) -> list[list[Ids]]:
        return [
            [np.arange(4) + 4 * (s.first_worker_batch + i) for i in range(len(s.worker_batches))]
            for s in steps
        ]


def growing_step(
    number: int, first_worker_batch: int, workers: int, round_number: int
) -> FinishedStep:
    ids = np.arange(4 * workers) + 4 * first_worker_batch
    members = tuple(f"w{i}" for i in range(workers))
    place = (round_number, members, (1,) * workers, 4 * workers, example_ids.digest(ids))
    return FinishedStep(number, 0, number, first_worker_batch, (4,) * workers, *place)


def test_a_step_that_only_the_dead_rank_0_had_finished_counts_as_the_others_take_it(
    tmp_path: Path,
) -> None:
    """Three batches, then two, and then the next rank 0 dies before it has written anything."""
    first, third = Worker(tmp_path, Growing()), Worker(tmp_path, Growing())
    first.enter(0, 0, starts_state=True)
    first.note(growing_step(0, 0, 3, 1), growing_step(1, 3, 3, 1), FinishedEpoch(0, 0, 2, True))
    third.enter(2, 0)
    third.note(growing_step(0, 0, 3, 1))
    third.enter(1, 1)
    third.note(growing_step(1, 3, 2, 2))
    third.enter(0, 2)
    third.note(growing_step(2, 5, 1, 3), FinishedEpoch(0, 0, 3, True))
    assert verdicts(tmp_path) == [EXACT]


def test_an_end_that_only_the_dead_rank_0_had_reached_is_written_again(tmp_path: Path) -> None:
    """As many steps as before, but other ones."""
    first, second = Worker(tmp_path, Growing()), Worker(tmp_path, Growing())
    first.enter(0, 0, starts_state=True)
    first.note(growing_step(0, 0, 3, 1), growing_step(1, 3, 3, 1), FinishedEpoch(0, 0, 2, True))
    second.enter(1, 0)
    second.note(growing_step(0, 0, 3, 1), growing_step(1, 3, 3, 2), FinishedEpoch(0, 0, 2, True))
    second.enter(0, 2)
    second.auditor.flush()
    assert verdicts(tmp_path) == [EXACT]
    assert second.told == [(0, EXACT)]


@pytest.mark.timeout(20)
def test_a_checkpoint_does_not_wait_for_the_verdict_and_the_next_rank_0_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def slow_judge(lines: Iterable[ledger_file.Line]) -> Account:
        goes_on.wait()
        return judge(lines)

    monkeypatch.setattr(recorder, "judge", slow_judge)
    first, second = Worker(tmp_path), Worker(tmp_path)
    first.enter(0, 0, starts_state=True)
    second.enter(1, 0)
    for note in (*map(step, range(3)), end(0)):
        first.auditor.note(note)
        second.auditor.note(note)
    first.auditor.flush(judged=False)
    *_, last = ledger_file.LinesOf(ledger_file.file_of(tmp_path, 0))
    assert isinstance(last, ledger_file.Closed)
    assert last.verdict == ""
    second.enter(0, 3)  # the first one is gone before it has judged
    goes_on.set()
    second.auditor.flush()
    assert second.told == [(0, EXACT)]
    first.auditor.flush()
    third = Worker(tmp_path)
    third.enter(1, 0)
    third.note(*map(step, range(3)), end(0))
    before = ledger_file.file_of(tmp_path, 0).read_bytes()
    third.enter(0, 3)
    third.auditor.flush()
    assert third.told == [(0, EXACT)]  # the second one may have had no time to tell it
    assert ledger_file.file_of(tmp_path, 0).read_bytes() == before


def test_entering_a_round_reads_nothing_that_this_worker_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    lines_from = ledger_file.lines_from

    def noted(path: Path, first: int) -> list[ledger_file.Line]:
        found = lines_from(path, first)
        read.append(len(found))
        return found

    monkeypatch.setattr(ledger_file, "lines_from", noted)
    first, second = Worker(tmp_path), Worker(tmp_path)
    first.enter(0, 0, starts_state=True)
    first.note(step(0), step(1))
    first.enter(0, 2)
    assert read == []
    second.enter(1, 2)
    second.note(step(2))
    second.enter(0, 3)
    assert read == [0]
    assert [len(judge(ledger_file.LinesOf(p)).steps) for p in ledger_file.epochs_in(tmp_path)] == [
        3
    ]
