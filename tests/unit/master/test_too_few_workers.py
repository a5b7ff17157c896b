"""A job with fewer workers than `min_workers` waits for more, for a while."""

from __future__ import annotations

from tests.unit.master.membership_driver import PATIENT, running_job


def test_a_job_below_min_workers_waits_says_so_once_and_goes_on() -> None:
    job = running_job(2, min_workers=2)
    job.kill("w1")
    job.enter("w0", step=5)
    for _ in range(5):
        job.wait(1.0)
        job.heartbeat("w0", step=5)
    waiting = [text for text in job.said if text.startswith("waiting")]
    assert waiting == ["waiting: 1 of at least 2 workers are here; a replacement is starting"]
    assert len(job.events("waiting")) == 1
    job.ready("w2")
    job.running("w0", "w2", step=5)
    assert job.round_number == 2
    assert job.members == ["w0", "w2"]
    assert job.state.rounds.waiting_since is None


def test_a_waiting_job_without_restarts_says_how_to_add_a_worker() -> None:
    job = running_job(2, min_workers=2, max_restarts=0)
    job.kill("w1")
    assert "w1 was killed by SIGKILL; no restart is left of 0 (--max_restarts)" in job.said
    assert job.said[-1] == "waiting: 1 of at least 2 workers are here; add one with `ctl add 1`"


def test_a_job_that_waits_too_long_fails_with_the_settings_that_would_help() -> None:
    job = running_job(2, min_workers=2, max_restarts=0, wait_timeout_s=1800.0, **PATIENT)
    job.kill("w1")
    job.enter("w0", step=5)
    job.wait(1800.0)
    assert not job.has_ended
    job.wait(1.0)
    assert "--min_workers" in job.failure
    assert "--max_restarts" in job.failure
    assert len(job.told_to_leave("w0")) == 1


def test_a_job_that_has_its_workers_again_does_not_fail_for_having_waited() -> None:
    job = running_job(2, min_workers=2, wait_timeout_s=100.0, **PATIENT)
    job.kill("w1")
    job.enter("w0", step=5)
    job.wait(99.0)
    job.ready("w2")
    assert job.members == ["w0", "w2"]
    job.wait(2.0)  # the workers initialise and sync
    assert not job.has_ended
