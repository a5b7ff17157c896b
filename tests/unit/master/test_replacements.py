"""Failed workers are replaced, until the restarts are used up or starting is useless."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hvd_elastic_keras.launchers.base import LOCALHOST, WorkerExit
from hvd_elastic_keras.master.job_end import concluded
from hvd_elastic_keras.master.machine import actions as act
from tests.unit.master.membership_driver import PATIENT, SIGKILL, Job, running_job


def test_a_member_that_fails_is_replaced_without_delay(three: Job) -> None:
    three.kill("w1")
    assert three.of(act.Launch)[-1] == act.Launch("w3", LOCALHOST, 0.0)
    assert three.said[-1] == "w1 was killed by SIGKILL; starting a replacement (restart 1 of 10)"


def test_failures_are_replaced_until_the_restarts_are_used_up() -> None:
    job = Job(1, max_restarts=2)
    for number in range(3):
        job.start()
        assert job.members == [f"w{number}"]
        job.kill(f"w{number}")
    assert job.launches == ["w0", "w1", "w2"]
    assert job.failure.startswith("no worker is left and all 2 restarts are used up")
    assert "w2 was killed by SIGKILL" in job.failure
    assert "--max_restarts" in job.failure


def test_the_others_go_on_when_the_restarts_are_used_up() -> None:
    job = running_job(2, max_restarts=0)
    job.kill("w1")
    job.resume("w0", step=1)
    assert job.round_number == 2
    assert not job.has_ended


def test_three_failures_in_a_row_before_any_worker_was_ready_end_the_job() -> None:
    job = Job(1)
    for number in range(3):
        assert not job.has_ended
        job.kill(f"w{number}")
    delays = [a.delay_s for a in job.of(act.Launch)]
    assert delays == [0.0, 1.0, 2.0]
    assert "w2 was killed by SIGKILL before it was ready" in job.failure
    assert "Workers failed so 3 times in a row, and none was ever ready" in job.failure
    assert "error is in its log" not in job.failure
    assert job.state.restarts.last_failure == WorkerExit("w2", SIGKILL)


def test_several_killed_together_while_they_start_are_one_failure_to_start() -> None:
    job = Job(4)
    for number in (0, 4):
        job.kill(*(f"w{n}" for n in range(number, number + 4)))
        assert not job.has_ended
        job.later(10.0)
    assert [a.delay_s for a in job.of(act.Launch)] == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert job.state.restarts.start_failures == 2


@pytest.mark.parametrize("end", [Job.kill, Job.fail, Job.exit], ids=["SIGKILL", "error", "exit 0"])
def test_newcomers_that_do_not_get_ready_never_end_a_training(
    end: Callable[..., None], three: Job
) -> None:
    three.add("w3", "w4", "w5")
    for number in range(3, 14):
        end(three, f"w{number}")
    assert not three.has_ended
    assert three.round_number == 1
    assert three.said[-1].endswith("no restart is left of 10 (--max_restarts)")
    delays = [a.delay_s for a in three.of(act.Launch)][6:]
    assert delays[:3] == [1.0, 1.0, 1.0], "these three were lost together"
    assert delays[-1] == 128.0, "nobody waits for the last one"


def test_errors_of_newcomers_are_not_those_of_the_step_that_the_others_take(three: Job) -> None:
    three.add("w3", "w4", "w5")
    three.fail("w3", "w4", "w5")
    three.fail("w2")
    assert not three.has_ended
    assert three.state.restarts.own_errors == 1


def test_when_those_who_trained_are_gone_the_same_error_again_and_again_ends_the_job() -> None:
    job = running_job(1)
    job.kill("w0")
    job.kill("w1", "w2", "w3", "w4")
    assert not job.has_ended, "what kills may pass"
    job.fail("w5", "w6")
    assert not job.has_ended
    job.fail("w7")
    assert job.failure.startswith(
        "w7 failed with exit code 1 before it was ready, and so did the 2 before it. The error is"
    )


def test_a_worker_that_becomes_ready_resets_the_count_of_start_failures() -> None:
    job = Job(1)
    job.kill("w0", "w1")
    job.ready("w2")
    job.kill("w2")
    assert not job.has_ended
    assert job.of(act.Launch)[-1].delay_s == 0.0


def test_a_long_job_with_a_failure_now_and_then_does_not_run_out_of_restarts() -> None:
    job = running_job(2, max_restarts=2, restart_window_s=3600.0, **PATIENT)
    for number in range(5):
        step = 10 * (number + 1)
        job.wait(2000.0)
        job.heartbeat(*job.members, step=step)
        gone, other = job.members[0], job.members[1]
        job.kill(gone)
        job.resume(other, step=step)
        job.ready(job.workers[-1])
        job.resume(*job.workers, step=step)
        assert job.state.restarts.used <= 2
    assert job.launches == [f"w{number}" for number in range(7)]


def test_a_slot_that_stayed_empty_is_filled_when_a_restart_is_free_again() -> None:
    job = running_job(2, max_restarts=1, restart_window_s=3600.0, **PATIENT)
    job.kill("w1")
    job.resume("w0", step=1)
    job.kill("w2")
    assert job.said[-1].endswith("no restart is left of 1 (--max_restarts)")
    job.wait(3000.0)
    job.heartbeat("w0", step=9)
    assert job.workers == ["w0"]
    job.wait(601.0)
    assert job.workers == ["w0", "w3"]
    assert "earlier failures are long ago: starting w3 (restart 1 of 1)" in job.said[-1]


def test_failures_are_not_forgotten_where_training_stands_still() -> None:
    job = running_job(2, max_restarts=1, restart_window_s=3600.0, **PATIENT)
    job.kill("w1")
    job.kill("w2")
    job.wait(5000.0)
    assert job.state.restarts.used == 1


def test_a_job_that_cannot_go_on_says_what_failed_first() -> None:
    job = running_job(2, max_restarts=1, **PATIENT)
    job.heartbeat("w0", "w1", step=5)
    job.kill("w1")
    job.fail("w0")
    job.fail("w2")
    assert "first w1 was killed by SIGKILL, last w2 failed" in job.failure
    assert job.end is not None
    result, _ = concluded(job.state, job.end, False, 0, job.now)
    assert result.failed_workers == ("w1", "w2")


def test_a_failure_that_training_has_got_over_is_not_the_first_one() -> None:
    job = running_job(2, max_restarts=1, **PATIENT)
    job.kill("w1")
    job.resume("w0", step=1)
    job.heartbeat("w0", step=9)
    job.fail("w0")
    job.fail("w2")
    assert "first w0 failed with exit code 1, last w2 failed" in job.failure
