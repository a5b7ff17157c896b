"""The decisions that follow a failure."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine.reasons import Departure, Evicted
from hvd_elastic_keras.master.machine.restart_policy import (
    GiveUp,
    GoOn,
    Restart,
    after_failure,
    still_counted,
)
from hvd_elastic_keras.master.machine.state import Replacement, Restarts
from hvd_elastic_keras.settings.job_config import JobConfig


@pytest.mark.parametrize(
    ("start_failures", "others", "delay_s"),
    [
        (0, 0, 0.0),
        (1, 0, 1.0),
        (2, 0, 2.0),
        (9, 0, 30.0),
        (9, 1, 30.0),  # too few workers are left to train
        (9, 2, 256.0),
        (9999, 2, 600.0),
    ],
)
def test_the_delay_doubles_with_every_failure_to_start(
    start_failures: int, others: int, delay_s: float
) -> None:
    restarts = Restarts(start_failures=start_failures)
    assert after_failure(JobConfig(min_workers=2), restarts, 1, others) == Restart(delay_s)


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
        (170.0, (1, 9), 2),  # the first failure is long ago
        (999.0, (1, 9), 1),  # at step 9, where training still is
        (999.0, (1, 5), 2),
        (999.0, (1, 10), 0),
        (999.0, (2, 0), 0),  # in the next training
    ],
)
def test_old_failures_are_forgotten_if_training_has_gone_on(
    now: float, progress: tuple[int, int], counted: int
) -> None:
    found = [Replacement(at, (1, step)) for at, step in [(100.0, 3), (130.0, 5), (150.0, 9)]]
    kept = still_counted(JobConfig(restart_window_s=60.0), found, now, progress)
    assert list(kept) == found[3 - counted :]


def test_the_same_error_three_times_in_a_row_gives_up_with_the_last_failure_and_a_hint() -> None:
    restarts = Restarts(start_failures=3, start_errors=3, last_failure=WorkerExit("w4", 1))
    decision = after_failure(JobConfig(), restarts, 1)
    assert isinstance(decision, GiveUp)
    assert decision.reason == (
        "w4 failed with exit code 1 before it was ready, and so did the 2 before it. The error is "
        "in its log"
    )
    assert isinstance(after_failure(JobConfig(), restarts, 1, others=1), Restart)


@pytest.mark.parametrize(
    ("last", "hint"),
    [
        (WorkerExit("w4", -9), "Something else ended it, mostly because memory ran out"),
        (WorkerExit("w4", 1), "The error is in its log"),
        (Evicted("w4", "no heartbeat for 16 s"), "Its log shows how far it had come"),
    ],
)
def test_people_are_sent_to_an_error_in_a_log_only_where_there_is_one(
    last: Departure, hint: str
) -> None:
    decision = after_failure(JobConfig(), Restarts(start_failures=3, last_failure=last), 0)
    assert isinstance(decision, GiveUp)
    assert hint in decision.reason
    assert (hint == "The error is in its log") == ("error is in" in decision.reason)


def test_what_only_ends_workers_from_outside_is_no_reason_to_give_up_once_one_was_ready() -> None:
    restarts = Restarts(start_failures=7, last_failure=WorkerExit("w4", -9))
    assert isinstance(after_failure(JobConfig(), restarts, 1), Restart)


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
    ("num_workers", "start_failures", "start_errors", "training", "gives_up"),
    [
        (1, 1, 1, 0, True),
        (2, 1, 1, 0, False),
        (2, 2, 2, 0, True),
        (2, 2, 1, 0, False),  # the other worker was killed
        (8, 3, 3, 0, True),
        (1, 1, 1, 1, False),  # one worker was ready before
    ],
)
def test_replacements_are_no_use_if_all_workers_of_the_start_end_with_an_error(
    num_workers: int, start_failures: int, start_errors: int, training: int, gives_up: bool
) -> None:
    restarts = Restarts(start_failures=start_failures, start_errors=start_errors)
    decision = after_failure(JobConfig(num_workers=num_workers), restarts, training)
    assert isinstance(decision, GiveUp) == gives_up
