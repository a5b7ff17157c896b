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
    assert "3 workers in a row" in decision.reason
    assert "w4 failed with exit code 1" in decision.reason
    assert "log" in decision.reason
