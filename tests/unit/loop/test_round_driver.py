"""The driver of rounds, with a worker that only notes what it is asked to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hvd_elastic_keras.common.errors import (
    CollectiveFailedError,
    ExpelledError,
    LeavingAloneError,
    MasterUnreachableError,
    WorkerLeavingError,
)
from hvd_elastic_keras.common.protocol import ALONE, Assignment
from hvd_elastic_keras.loop.leave_reason import LeaveReason
from hvd_elastic_keras.loop.round_driver import FailedAt, drive

LOST = CollectiveFailedError("a peer is gone")


class Worker:
    """A worker whose rounds end as a test says: finished, not finished, or with an error."""

    def __init__(self, *ends: bool | Exception, order: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.progress: Callable[[], int] = lambda: 7
        self._ends = iter(ends)
        self._order = order

    def enter(self, failure: str) -> Assignment:
        self.calls.append(f"enter {failure}".strip())
        if self._order is not None and len(self.calls) > 1:
            raise self._order
        return ALONE

    def on_order_to_leave(self, parting: LeaveReason) -> None:
        self.calls.append(f"leave: {parting.name}")

    def take_part(self, place: Assignment) -> bool:
        self.calls.append("train")
        end = next(self._ends)
        if isinstance(end, Exception):
            raise end
        return end

    def failed_at(self) -> FailedAt:
        return FailedAt(self.progress(), what="Step 7", where=" here", whose="the model")

    def restore(self, error: CollectiveFailedError) -> None:
        self.calls.append(f"restore {error}")

    def leave(self, place: Assignment, *, finished: bool) -> None:
        self.calls.append(f"leave {finished}")


def test_goes_from_round_to_round_until_all_have_finished() -> None:
    worker = Worker(False, True)
    drive(worker)
    assert worker.calls == ["enter", "train", "leave False", "enter", "train", "leave True"]


def test_after_a_failure_restores_then_leaves_and_reports_it_once() -> None:
    worker = Worker(LOST, False, True)
    drive(worker)
    failed = ["enter", "train", "restore a peer is gone", "leave False"]
    assert worker.calls[:5] == [*failed, "enter a peer is gone"]
    assert worker.calls[7] == "enter"


def test_the_third_failure_at_the_same_place_ends_the_training_out_of_the_round() -> None:
    worker = Worker(LOST, LOST, LOST)
    with pytest.raises(CollectiveFailedError, match="Step 7 failed 3 times here although") as error:
        drive(worker)
    assert error.value.__cause__ is LOST
    assert worker.calls.count("restore a peer is gone") == 2
    assert worker.calls[-2:] == ["train", "leave False"]


def test_failures_at_different_places_are_matters_of_membership() -> None:
    worker = Worker(LOST, LOST, LOST, LOST, True)
    worker.progress = lambda: len(worker.calls)
    drive(worker)
    assert worker.calls[-1] == "leave True"


def test_another_error_leaves_the_round_and_is_raised() -> None:
    worker = Worker(ValueError("the user's own"))
    with pytest.raises(ValueError, match="the user's own"):
        drive(worker)
    assert worker.calls == ["enter", "train", "leave False"]


@pytest.mark.parametrize(
    ("order", "round_before", "parting"),
    [
        (WorkerLeavingError("revoked"), False, "TOLD"),
        (WorkerLeavingError("the job stops"), LOST, "TOLD"),
        (ExpelledError("no longer part of the job"), False, "EXPELLED"),
        (ExpelledError("no longer part of the job"), LOST, "EXPELLED"),
        (LeavingAloneError("SIGTERM"), False, "WITHOUT_MASTER"),
        (LeavingAloneError("SIGTERM"), LOST, "CUT_OFF"),
        (MasterUnreachableError("nobody answers"), False, "WITHOUT_MASTER"),
        (MasterUnreachableError("nobody answers"), LOST, "CUT_OFF"),
    ],
)
def test_who_has_to_leave_is_in_no_round_and_knows_whether_others_answered_last(
    order: Exception, round_before: bool | Exception, parting: str
) -> None:
    worker = Worker(round_before, order=order)
    with pytest.raises(type(order)):
        drive(worker)
    assert worker.calls[-3] == "leave False"
    assert worker.calls[-1] == f"leave: {parting}"
