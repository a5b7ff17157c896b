"""What follows from a failure."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.config import JobConfig
from hvd_elastic_keras.master.restart_policy import GiveUp, GoOn, Restart, after_failure
from hvd_elastic_keras.master.state import State


@pytest.mark.parametrize(("start_failures", "delay_s"), [(0, 0.0), (1, 1.0), (2, 2.0)])
def test_the_delay_doubles_with_every_failure_to_start(start_failures: int, delay_s: float) -> None:
    state = State(start_failures=start_failures)
    assert after_failure(JobConfig(), state) == Restart(delay_s)


@pytest.mark.parametrize(("used", "allowed"), [(0, 0), (3, 3), (4, 3)])
def test_no_more_workers_are_started_than_restarts_are_allowed(used: int, allowed: int) -> None:
    decision = after_failure(JobConfig(max_restarts=allowed), State(restarts_used=used))
    assert decision == GoOn(f"no restart is left of {allowed} (--max_restarts)")


def test_three_start_failures_in_a_row_give_up_with_the_last_failure_and_a_hint() -> None:
    state = State(start_failures=3, last_failure="w4 failed with exit code 1")
    decision = after_failure(JobConfig(), state)
    assert isinstance(decision, GiveUp)
    assert decision.reason.startswith(
        "w4 failed with exit code 1 before it was ready, and so did the 2 before it."
    )
    assert "log" in decision.reason


@pytest.mark.parametrize(
    ("num_workers", "start_failures", "own_errors", "training", "gives_up"),
    [
        (1, 1, 1, 0, True),
        (2, 1, 1, 0, False),
        (2, 2, 2, 0, True),
        (2, 2, 1, 0, False),  # the other one was killed
        (8, 3, 3, 0, True),
        (1, 1, 1, 1, False),  # one was ready before
    ],
)
def test_replacements_are_no_use_if_all_workers_of_the_start_end_with_an_error(
    num_workers: int, start_failures: int, own_errors: int, training: int, gives_up: bool
) -> None:
    state = State(start_failures=start_failures, own_errors=own_errors, training=training)
    decision = after_failure(JobConfig(num_workers=num_workers), state)
    assert isinstance(decision, GiveUp) == gives_up
