"""Requests by people: their effects, and the reasons for refusals."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hvd_elastic_keras.common.control import ChangeRequest
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.change_request import Change, plan_change
from hvd_elastic_keras.master.machine.phases import Stopping
from hvd_elastic_keras.master.machine.state import Finish, State, Training, Worker, WorkerPhase
from hvd_elastic_keras.settings.job_config import JobConfig

CONFIG = JobConfig(num_workers=3, min_workers=2, max_workers=4)


def state_of(*seniorities: int | None, **changes: Any) -> State:
    """Returns a state of workers w0, w1, … with these seniorities; those without are starting."""
    phases = [WorkerPhase.STARTING if s is None else WorkerPhase.MEMBER for s in seniorities]
    workers = {
        f"w{i}": Worker(f"w{i}", launched_at=0.0, seniority=s, phase=phase)
        for i, (s, phase) in enumerate(zip(seniorities, phases, strict=True))
    }
    return State(slots={"localhost": len(workers)}, workers=workers, **changes)


def test_workers_are_added_up_to_max_workers() -> None:
    plan = plan_change(CONFIG, state_of(0, 1, 2), ChangeRequest(add=1))
    assert plan == Change((act.AddWorkers(1),), "1 more is starting")


@pytest.mark.parametrize(
    ("seniorities", "request_", "leavers", "text"),
    [
        ((0, 1, 2), ChangeRequest(remove=1), ["w2"], "w2 will leave after the current step"),
        ((2, 1, 0), ChangeRequest(remove=1), ["w0"], "w0 will leave after the current step"),
        ((0, 1, None), ChangeRequest(remove=1), ["w2"], "w2 ends at once"),
        ((0, None, 1, None), ChangeRequest(remove=2), ["w3", "w1"], "w3, w1 end at once"),
        (
            *((0, 1, 2, None), ChangeRequest(remove=2), ["w3", "w2"]),
            "w2 will leave after the current step; w3 ends at once",
        ),
        (
            *((0, 1, 2), ChangeRequest(remove_worker_id="w0"), ["w0"]),
            "w0 will leave after the current step",
        ),
    ],
)
def test_those_that_hold_least_leave_first_unless_one_is_named(
    seniorities: tuple[int | None, ...], request_: ChangeRequest, leavers: list[str], text: str
) -> None:
    plan = plan_change(CONFIG, state_of(*seniorities), request_)
    assert isinstance(plan, Change)
    assert plan.events == tuple(act.RemoveWorker(w) for w in leavers)
    assert plan.text == text


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ChangeRequest(add=2), ["3 workers plus 2", "max_workers=4", "--max_workers"]),
        (ChangeRequest(add=-1), ["-1", "at least 1"]),
        (ChangeRequest(remove=2), ["3 workers minus 2", "min_workers=2"]),
        (ChangeRequest(remove=9), ["3 workers minus 9", "min_workers=2"]),
        (ChangeRequest(remove=-1), ["N >= 1"]),
        (ChangeRequest(), ["add N", "remove N"]),
        (ChangeRequest(remove_worker_id="w7"), ["'w7'", "w0, w1, w2"]),
    ],
)
def test_a_refusal_says_what_was_asked_for_and_what_is_possible(
    request_: ChangeRequest, words: list[str]
) -> None:
    plan = plan_change(CONFIG, state_of(0, 1, 2), request_)
    assert isinstance(plan, str)
    assert all(word in plan for word in words), plan


def test_nothing_is_changed_when_the_job_is_ending() -> None:
    plan = plan_change(CONFIG, state_of(0, 1, 2, job=Stopping("interrupted")), ChangeRequest(add=1))
    assert plan == "The job is ending; nothing was changed."


def test_nothing_is_changed_between_two_trainings() -> None:
    state = state_of(0, 1, 2, training=Training(1, finish=Finish()))
    plan = plan_change(CONFIG, state, ChangeRequest(add=1))
    assert isinstance(plan, str)
    assert plan.startswith("Training 1 is finished; nothing was changed.")


def test_workers_that_are_leaving_do_not_count() -> None:
    state = state_of(0, 1, 2)
    leaving = replace(state.workers["w2"], leaving="SIGTERM")
    state = replace(state, workers={**state.workers, "w2": leaving})
    assert isinstance(plan_change(CONFIG, state, ChangeRequest(remove=1)), str)
    assert isinstance(plan_change(CONFIG, state, ChangeRequest(remove_worker_id="w2")), str)
    assert isinstance(plan_change(CONFIG, state, ChangeRequest(add=2)), Change)
