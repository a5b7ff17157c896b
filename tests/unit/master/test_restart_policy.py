"""What follows from a failure."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine.restart_policy import (
    GiveUp,
    GoOn,
    Restart,
    after_failure,
    still_counted,
)
from hvd_elastic_keras.master.machine.state import Replacement, Restarts


@pytest.mark.parametrize(("start_failures", "delay_s"), [(0, 0.0), (1, 1.0), (2, 2.0)])
def test_the_delay_doubles_with_every_failure_to_start(start_failures: int, delay_s: float) -> None:
    restarts = Restarts(start_failures=start_failures)
    assert after_failure(JobConfig(), restarts, 1) == Restart(delay_s)


@pytest.mark.parametrize(("used", "allowed"), [(0, 0), (3, 3), (4, 3)])
def test_no_more_workers_are_started_than_restarts_are_allowed(used: int, allowed: int) -> None:
    decision = after_failure(
        JobConfig(max_restarts=allowed), Restarts((Replacement(0.0, (1, 0)),) * used), 1
    )
    assert decision == GoOn(f"no restart is left of {allowed} (--max_restarts)")


@pytest.mark.parametrize(
    ("now", "progress", "counted"),
    [
        (160.0, (1, 9), 3),
        (170.0, (1, 9), 2),  # the first one is long ago
        (999.0, (1, 9), 1),  # at step 9, where it still is
        (999.0, (1, 5), 2),
        (999.0, (1, 10), 0),
        (999.0, (2, 0), 0),  # the next training
    ],
)
def test_old_failures_are_forgotten_if_training_has_gone_on(
    now: float, progress: tuple[int, int], counted: int
) -> None:
    found = [Replacement(at, (1, step)) for at, step in [(100.0, 3), (130.0, 5), (150.0, 9)]]
    kept = still_counted(JobConfig(restart_window_s=60.0), found, now, progress)
    assert list(kept) == found[3 - counted :]


def test_three_start_failures_in_a_row_give_up_with_the_last_failure_and_a_hint() -> None:
    restarts = Restarts(start_failures=3, last_failure=WorkerExit("w4", 1))
    decision = after_failure(JobConfig(), restarts, 1)
    assert isinstance(decision, GiveUp)
    assert decision.reason.startswith(
        "w4 failed with exit code 1 before it was ready, and so did the 2 before it."
    )
    assert "log" in decision.reason


@pytest.mark.parametrize(
    ("num_workers", "own_errors", "step", "training", "gives_up"),
    [
        (1, 1, 0, 1, False),
        (1, 2, 0, 1, True),
        (2, 1, 0, 1, False),
        (2, 2, 0, 1, True),
        (2, 2, 5, 1, False),  # training has begun
        (2, 2, 0, 2, False),
        (2, 3, 5, 1, True),
        (8, 2, 0, 1, False),
        (8, 3, 0, 1, True),
    ],
)
def test_an_error_that_all_workers_have_before_the_first_step_ends_the_job(
    num_workers: int, own_errors: int, step: int, training: int, gives_up: bool
) -> None:
    restarts = Restarts(own_errors=own_errors, own_errors_step=step)
    decision = after_failure(JobConfig(num_workers=num_workers), restarts, training)
    assert isinstance(decision, GiveUp) == gives_up


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
    restarts = Restarts(start_failures=start_failures, own_errors=own_errors)
    decision = after_failure(JobConfig(num_workers=num_workers), restarts, training)
    assert isinstance(decision, GiveUp) == gives_up
