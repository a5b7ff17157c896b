"""The job is stopped on request: all workers leave after their step, and none is replaced."""

from __future__ import annotations

from hvd_elastic_keras.master.machine.state import update_for
from tests.unit.master.membership_driver import INTERRUPTED, Job, running_job


def test_stopping_the_job_ends_it_when_all_have_left(three: Job) -> None:
    three.interrupt()
    assert three.pending_through == 1
    assert update_for(three.state, "w0").stop == "interrupted"
    three.enter("w0", "w1", "w2", step=11)
    assert three.told_to_leave("w2") == ["interrupted"]
    three.exit("w0", "w1")
    assert not three.has_ended
    three.exit("w2")
    assert three.end == INTERRUPTED
    assert three.launches == ["w0", "w1", "w2"]


def test_a_member_killed_while_the_job_stops_frees_the_others(three: Job) -> None:
    three.interrupt()
    three.kill("w1")
    assert three.broken_through == 1
    three.enter("w0", "w2", step=10)
    three.exit("w0", "w2")
    assert three.end == INTERRUPTED
    assert three.launches == ["w0", "w1", "w2"]


def test_stopping_the_job_releases_those_who_wait() -> None:
    job = running_job(3, micro_batches=2)
    job.interrupt()
    assert job.told_to_leave("w2") == ["interrupted"]
