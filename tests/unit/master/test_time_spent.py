"""How the job's time is spent. `membership_driver` checks that the parts make up all of it."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common import goodput
from hvd_elastic_keras.common.goodput import Part, Spent
from hvd_elastic_keras.master.job_end import concluded
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.claims import Claims
from hvd_elastic_keras.master.machine.decisions import decisions_of, spent_before
from hvd_elastic_keras.master.machine.status import job_status
from tests.unit.master.membership_driver import FINISHED, Job


def spent(job: Job) -> dict[str, float]:
    return dict(job_status(job.config, job.state, job.now).spent_s)


def job_after_start() -> Job:
    """Returns three workers that took 7 s to become warm, and 1 s to sync."""
    job = Job(3)
    job.later(7.0)
    job.ready("w0", "w1", "w2")
    job.later(1.0)
    job.running("w0", "w1", "w2")
    return job


def test_a_job_starts_syncs_and_trains() -> None:
    job = job_after_start()
    job.later(4.0)
    job.heartbeat("w0", "w1", "w2", step=3, phase="evaluating")
    job.later(2.0)
    job.heartbeat("w1", step=3, phase="training")  # only rank 0 counts
    job.later(0.5)
    assert spent(job) == {"starting": 7.0, "training": 4.0, "evaluating": 2.5, "syncing": 1.0}


def test_a_job_that_only_evaluates_never_trains() -> None:
    job = Job(1)
    job.later(2.0)
    job.ready("w0")
    job.running("w0", phase="evaluating")
    job.later(0.3)
    job.done("w0")
    assert spent(job) == {"starting": 2.0, "evaluating": 0.3}


def test_what_a_frozen_worker_costs_is_no_training() -> None:
    job = job_after_start()
    job.later(20.0)
    job.heartbeat("w0", "w1", "w2", step=10)
    for _ in range(32):
        job.later(0.5)
        job.heartbeat("w0", "w2", step=10)
    job.send(act.Tick())
    job.later(0.25)
    job.enter("w0", "w2", step=10, idle_s=16.5)
    job.later(0.5)
    job.running("w0", "w2", step=10)
    expected = {"training": 19.75, "detecting": 16.25, "re-forming": 0.25}
    assert spent(job) == {**expected, "starting": 7.0, "syncing": 1.5}


def test_a_planned_change_stands_still_from_the_last_step_on() -> None:
    job = job_after_start()
    job.add_ready("w3")
    job.later(4.0)
    job.enter("w0", step=11, idle_s=0.25)
    job.later(0.25)
    job.enter("w1", "w2", step=11)
    assert spent(job) == {"starting": 7.0, "training": 3.75, "syncing": 1.0, "re-forming": 0.5}


def test_steps_that_are_taken_again_are_no_progress() -> None:
    job = job_after_start()
    job.later(5.0)
    job.heartbeat("w0", "w1", "w2", step=20)
    job.kill("w1")
    job.resume("w0", "w2", step=15)
    job.later(2.0)
    job.heartbeat("w0", step=18)
    job.later(1.0)
    job.heartbeat("w0", step=20)
    job.later(4.0)
    assert spent(job) == {"training": 9.0, "starting": 7.0, "recomputing": 3.0, "syncing": 1.0}


def test_a_job_that_lacks_workers_waits() -> None:
    job = Job(1)
    job.start()
    job.later(3.0)
    job.kill("w0")
    job.later(8.0)
    job.ready("w1")
    job.running("w1")
    assert spent(job) == {"waiting": 8.0, "training": 3.0}


def test_the_end_of_a_job_is_told_in_its_last_entry_and_result() -> None:
    job = job_after_start()
    job.later(5.0)
    job.done("w0", "w1", "w2", step=30)
    job.later(2.0)
    job.exit("w0", "w1", "w2")
    result, entry = concluded(job.state, FINISHED, False, 0, job.now)
    expected = {"starting": 7.0, "training": 5.0, "script": 2.0, "syncing": 1.0}
    assert entry.spent_s == result.spent_s == expected
    assert (entry.status, entry.step, result.succeeded) == ("finished", 30, True)


def test_a_script_has_time_of_its_own_between_two_trainings() -> None:
    job = job_after_start()
    job.later(5.0)
    job.done("w0", step=30)
    job.later(2.0)
    job.done("w1", "w2", step=30)
    job.later(60.0)
    for worker in ("w0", "w1", "w2"):
        job.enter(worker, training=2)
        job.later(1.0)
    job.running("w0", "w1", "w2")
    job.later(4.0)
    expected = {"script": 62.0, "training": 9.0, "starting": 7.0, "finishing": 2.0}
    assert spent(job) == {**expected, "syncing": 2.0}


@pytest.mark.parametrize("wanted", [0.0, 1.5, 4.0, 99.0])
def test_no_more_time_is_moved_than_there_is(wanted: float) -> None:
    before = Spent({Part.TRAINING: 1.0, Part.EVALUATING: 3.0}, until=4.0)
    after = before.moved(wanted, (Part.TRAINING, Part.EVALUATING), Part.DETECTING)
    assert after.total_s == before.total_s
    assert after.seconds.get(Part.DETECTING, 0.0) == min(wanted, 4.0)
    assert min(after.seconds.values()) >= 0.0


def test_time_is_told_in_words_with_the_largest_part_first() -> None:
    found = goodput.rounded(Spent({Part.STARTING: 2.0, Part.TRAINING: 6.0, Part.WAITING: 0.0}))
    assert goodput.told(found) == "8.0 s: training 6.0 s (75 %), starting 2.0 s (25 %)"


def test_workers_train_on_without_a_master() -> None:
    job = job_after_start()
    job.later(4.0)
    job.heartbeat("w0", "w1", "w2", step=10)
    job.later(60.0)
    job.restart()
    job.later(2.0)
    assert spent(job) == {"training": 66.0, "starting": 7.0, "syncing": 1.0}


def test_who_stood_still_without_a_master_tells_since_when() -> None:
    job = job_after_start()
    job.later(60.0)
    job.restart()
    job.kill("w1")
    job.later(1.0)
    job.enter("w0", "w2", step=10, idle_s=41.0)
    job.running("w0", "w2", step=10)
    found = spent(job)
    assert found["training"] == 20.0
    assert sum(found.values()) == 69.0
    assert job.last("round_running")["stall_s"] >= 41.0


def test_a_job_that_was_down_as_a_whole_goes_on_with_its_account() -> None:
    job = job_after_start()
    job.later(4.0)
    job.kill("w0", "w1", "w2")
    left = decisions_of(job.state, Claims(), {}, written_at=1000.0)
    before = spent_before(left, 1030.0)
    assert before.seconds == {**job.state.spent.seconds, Part.DOWN: 30.0}
    assert before.up_to(5.0, Part.STARTING).total_s == before.total_s
    assert spent_before(None, 1030.0) == Spent()
