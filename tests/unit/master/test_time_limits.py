"""A worker that is silent or does not come is evicted, unless it has no reason to come."""

from __future__ import annotations

from tests.unit.master.membership_driver import PATIENT, Job, running_job


def test_a_silent_member_is_evicted_and_replaced(three: Job) -> None:
    three.later(10.0)
    three.heartbeat("w0", "w2", step=10)
    three.wait(6.0)
    assert three.killed == ["w1"]
    assert three.broken_through == 1
    assert three.last("worker_exited")["cause"] == "evicted: no heartbeat for 16 s"
    assert three.launches[-1] == "w3"
    three.kill("w1")
    assert len(three.events("worker_exited")) == 1, "the launcher's report comes second"


def test_a_starting_worker_that_has_never_called_is_not_evicted() -> None:
    job = Job(1)
    job.wait(60.0)
    assert job.killed == []


def test_a_called_member_that_does_not_come_is_evicted(three: Job) -> None:
    three.kill("w1")
    three.enter("w0", step=10)
    for _ in range(6):
        three.heartbeat("w0", "w2", step=10)
        three.wait(10.0)
    assert three.killed == []
    three.heartbeat("w0", "w2", step=10)
    three.wait(1.0)
    assert three.killed == ["w2"]
    assert "did not enter round 2 within 60 s" in three.last("worker_exited")["cause"]
    assert three.members == ["w0"]


def test_an_assigned_member_that_does_not_confirm_is_evicted() -> None:
    job = Job(2, **PATIENT)
    job.ready("w0", "w1")
    job.running("w0")
    job.wait(61.0)
    assert job.killed == ["w1"]
    assert job.broken_through == 1
    job.enter("w0")
    assert job.members == ["w0"]


def test_a_spare_is_never_evicted_for_not_being_called() -> None:
    job = running_job(3, micro_batches=2, **PATIENT)
    job.wait(1e4)
    assert job.killed == []
