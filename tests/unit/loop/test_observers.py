"""Observers of a training: which are called on which worker, and what the smaller ones do."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.errors import NonFiniteLossError
from hvd_elastic_keras.common.protocol import ALONE
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.partition import StepShare
from hvd_elastic_keras.loop.observer import EndedEpoch, Observer, Observers, Round, TakenStep
from hvd_elastic_keras.loop.observers.nonfinite_loss import NonFiniteLoss
from hvd_elastic_keras.loop.observers.records import EpochRecords
from hvd_elastic_keras.loop.progress_display import ProgressDisplay
from hvd_elastic_keras.loop.shares import Shares
from hvd_elastic_keras.loop.start_notices import Announcer, StartNotices
from hvd_elastic_keras.observe.console import Screen
from hvd_elastic_keras.observe.notices import Notice
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.step.step_result import StepResult
from hvd_elastic_keras.worker.reporter import TerminalReporter

WARNED = Notice("warning: of something", events.RecordsSkipped(count=1, records=[]))


class OfRoot(Observer):
    root_only = True


class Noting(TerminalReporter):
    """Notes messages to people and recorded entries."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def show(self, text: str, progress: Any = None) -> None:
        self.told.append(text)

    def record(self, entry: events.WorkerEntry) -> None:
        self.told.append(entry)

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        self.told.append(Notice(prefix + text, entry))


def entered(rank: int = 0, size: int = 2, step: int = 0, starts_state: bool = False) -> Round:
    members = tuple(f"w{n}" for n in range(size))
    place = msgspec.structs.replace(
        ALONE, rank=rank, size=size, members=members, rendezvous="host:1/secret/round1"
    )
    return Round(place, Cursor(global_step=step), starts_state)


def ended(epoch: int, *, is_last: bool = False) -> EndedEpoch:
    logs = {"loss": 0.5, "counts": np.array([1, 2])}
    return EndedEpoch(Cursor(epoch=epoch, global_step=8), logs, is_last, shown=logs)


def test_each_hears_in_order_and_some_only_on_rank_0() -> None:
    first, of_root, last = Observer(), OfRoot(), Observer()
    observers = Observers([first, of_root, last])
    assert list(observers) == [first, last], "no rank yet"
    observers.take_rank(0)
    assert list(observers) == [first, of_root, last]
    observers.take_rank(1)
    assert list(observers) == [first, last]


def test_notices_are_told_when_the_first_round_runs_and_never_again() -> None:
    session = Noting()
    observer = StartNotices(
        session, [WARNED], unsendable_warning=lambda: "a callback's memory is lost"
    )
    observer.on_round(entered(starts_state=True))
    assert session.told == []
    observer.on_running(entered(starts_state=True))
    assert session.told == [WARNED, Notice("warning: a callback's memory is lost")]
    observer.on_running(entered())
    assert len(session.told) == 2


def test_only_who_begins_the_state_tells_what_of_it_is_lost() -> None:
    session = Noting()
    StartNotices(session, [], unsendable_warning=lambda: "much").on_running(
        entered(starts_state=False)
    )
    assert session.told == []


def test_the_end_of_an_epoch_is_recorded_in_terms_of_json() -> None:
    root, other = Noting(), Noting()
    metrics = {"loss": 0.5, "counts": [1, 2]}
    entry = events.EpochEnd(epoch=2, step=8, metrics=metrics, audited=True)
    of_root, of_other = (EpochRecords(session, audited=True) for session in (root, other))
    of_root.on_round(entered(rank=0))
    of_other.on_round(entered(rank=1))
    for records in (of_root, of_other):
        records.after_epoch(ended(2))
    assert (root.told, other.told) == ([Notice("", entry)], [])
    of_root.on_round(entered(rank=0))
    of_other.on_round(entered(rank=0))
    assert (len(root.told), other.told) == (1, [Notice("", entry)]), "it may have been lost"


def taken(step: int, **logs: float) -> TakenStep:
    cursor = Cursor(global_step=step)
    batch = LocalBatch((), StepShare(0, 0, np.zeros(1, np.int32), 0, num_examples_of_step=64))
    return TakenStep(cursor, entered().place, batch, (), StepResult(dict(logs)), steps_left=None)


def test_a_loss_that_is_not_finite_is_told_once() -> None:
    session = Noting()
    losses, present = NonFiniteLoss(session, "warn"), []
    nan = float("nan")
    for step, loss in enumerate([0.5, nan, nan, 0.7]):
        losses.after_step(taken(step, loss=loss, precision=nan))
        present.append(losses.is_present)
    assert present == [False, True, True, False]
    (told,) = session.told
    assert told.text.startswith("warning: not finite: loss nan in step 1 (from 0; epoch 1).")


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_the_job_stops_at_a_loss_that_is_not_finite_if_asked_to(loss: float) -> None:
    with pytest.raises(NonFiniteLossError, match=r"g_loss .* in step 7"):
        NonFiniteLoss(TerminalReporter(), "stop").after_step(taken(7, g_loss=loss))
    ignoring = NonFiniteLoss(TerminalReporter(), "ignore")
    ignoring.after_step(taken(7, g_loss=loss))
    assert not ignoring.is_present


class Progress:
    """The part of the run state that shares use."""

    def __init__(self) -> None:
        self.cursor = Cursor(global_step=5)
        self.slowness: dict[str, float] = {}
        self.late_ranks: tuple[int, ...] = ()


def slow_step(*seconds: float, pending: bool = False) -> TakenStep:
    part = StepShare(0, 0, np.zeros(1, np.int32), 0, num_examples_of_step=64)
    result = StepResult({}, change_pending=pending, seconds=seconds)
    place = entered(size=len(seconds)).place
    return TakenStep(Cursor(), place, LocalBatch((), part), (), result, steps_left=None)


def test_whose_state_is_on_its_way_has_no_share_in_the_first_step_of_a_round() -> None:
    session, state = Noting(), Progress()
    announcer = Announcer(session, ProgressDisplay(session.show, Screen.LINES))
    shares = Shares(state, 8, announcer)  # type: ignore[arg-type]
    state.late_ranks = (1,)
    shares.after_sync(entered(size=3))
    changes = shares.changes
    assert shares.balance.shares == [4, 0, 4]
    shares.after_step(slow_step(0.0, 0.0, 0.0))
    assert (shares.balance.shares, shares.changes) == ([3, 3, 2], changes + 1)
    shares.after_step(slow_step(0.0, 0.0, 0.0))
    assert shares.changes == changes + 1
    assert session.told == []


@pytest.mark.parametrize("rank", [0, 1])
def test_all_workers_come_to_the_same_shares_and_rank_0_tells_of_them(rank: int) -> None:
    session, state = Noting(), Progress()
    announcer = Announcer(session, ProgressDisplay(session.show, Screen.LINES))
    shares = Shares(state, 8, announcer)  # type: ignore[arg-type]
    for observer in (announcer, shares):
        observer.on_round(entered(rank))
        observer.after_sync(entered(rank))
    even, changes = list(shares.balance.shares), shares.changes
    for _ in range(100):
        shares.after_step(slow_step(0.03, 0.09, pending=True))
    assert shares.balance.shares == even == [4, 4]
    for _ in range(100):
        shares.after_step(slow_step(0.03, 0.09))
    assert shares.balance.shares == [6, 2]
    assert shares.changes == changes + 1
    assert state.slowness == {"w0": 1.0, "w1": 3.0}
    assert len(session.told) == (2 if rank == 0 else 0)
    if rank == 0:
        entry, line = session.told
        assert isinstance(entry, events.SharesBalanced)
        assert (entry.step, entry.micro_batches) == (5, [6, 2])
        assert "slowest is w1, 3.0 times" in line
    shares.after_sync(entered(rank))
    assert shares.balance.shares == [6, 2], "known from the round before"
