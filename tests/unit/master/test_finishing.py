"""The training is finished: when the job ends, and what losses mean in the last steps."""

from __future__ import annotations

from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from tests.unit.master.membership_driver import FINISHED, SIGKILL, Job, running_job


def test_the_job_ends_when_all_are_done_and_gone(three: Job) -> None:
    three.done("w0", "w1", step=30)
    three.exit("w0")
    assert not three.has_ended
    three.done("w2", step=30)
    assert not three.has_ended, "the scripts go on"
    three.exit("w1", "w2")
    assert three.end == FINISHED
    assert three.state.training.newest_step == 30
    assert act.CloseRendezvous(1) in three.actions


def test_nothing_is_started_after_the_end() -> None:
    job = running_job(1)
    job.done("w0")
    job.exit("w0")
    assert job.end is not None
    for event in (act.Tick(), WorkerExit("w0", SIGKILL), act.AddWorkers(1)):
        job.send(event)
    assert job.launches == ["w0"]
    assert job.end == FINISHED


def test_a_worker_that_comes_after_the_end_is_told_to_leave() -> None:
    """Otherwise it is held at the entrance until the grace time is over, and killed."""
    job = running_job(2)
    job.fail("w1")
    job.add_ready("w3")
    job.fail("w2", "w3")
    assert job.end is not None
    job.enter("w0", step=10)
    assert job.told_to_leave("w0") == [job.end.reason]


# --- members that are lost when others are done ------------------------------------------


def test_a_member_killed_after_others_were_done_is_not_replaced(three: Job) -> None:
    three.done("w0", step=30)
    three.kill("w1")
    assert three.launches == ["w0", "w1", "w2"]
    assert three.broken_through == 1
    three.exit("w0")
    three.lose_contact("w2", step=30)
    assert three.members == ["w2"]
    three.running("w2", step=30)
    three.done("w2", step=30)
    three.exit("w2")
    assert three.end == FINISHED


def test_min_workers_does_not_hold_back_the_last_ones() -> None:
    job = running_job(3, min_workers=3)
    job.done("w0", step=30)
    job.kill("w1")
    job.enter("w2", step=30)
    assert job.members == ["w2"]


def test_the_job_succeeds_when_the_last_members_die_after_one_was_done() -> None:
    job = running_job(2)
    job.done("w0", step=30)
    job.exit("w0")
    job.kill("w1")
    assert job.end == FINISHED


def test_a_member_that_is_done_is_not_awaited_at_the_entrance(three: Job) -> None:
    three.add_ready("w3")
    three.done("w0", step=30)
    three.exit("w0")
    three.kill("w1")
    three.lose_contact("w2", step=30)
    assert "w0" not in three.members
    assert three.members[0] == "w2"


# --- workers that have no part in it -----------------------------------------------------


def test_spares_and_starting_workers_do_not_hold_back_the_end() -> None:
    job = running_job(3, micro_batches=2)
    job.add("w3")
    job.done("w0", "w1", step=30)
    assert job.told_over("w2") == 1
    job.exit("w0", "w1", "w2")
    assert job.end == FINISHED


def test_a_joiner_that_was_called_while_the_members_finish_does_not_hold_back_the_end(
    three: Job,
) -> None:
    """The members are past their last step, so they do not come to the entrance."""
    three.add_ready("w3")
    assert three.pending_through == 1
    three.done("w0", "w1", "w2", step=30)
    assert three.told_over("w3") == 1
    three.exit("w0", "w1", "w2", "w3")
    assert three.end == FINISHED


# --- rounds of milliseconds, as in a job that is started again after its last step -------


def test_a_member_that_ends_before_another_one_has_confirmed_does_no_harm() -> None:
    job = Job(2)
    job.ready("w0", "w1")
    for worker_id in ("w0", "w1"):
        job.running(worker_id, step=30)
        job.done(worker_id, step=30)
        job.exit(worker_id)
    assert job.end == FINISHED


def test_a_member_killed_before_the_round_runs_leaves_out_those_that_are_done() -> None:
    job = Job(3)
    job.ready("w0", "w1", "w2")
    job.running("w0", step=30)
    job.done("w0", step=30)
    job.kill("w1")
    job.exit("w0")
    job.enter("w2", step=30)
    assert job.members == ["w2"]
