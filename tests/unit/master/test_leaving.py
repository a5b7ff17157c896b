"""Workers that are asked to leave: by SIGTERM or on request, in a round or outside of it."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from tests.unit.master.membership_driver import Job, running_job

# --- a member ----------------------------------------------------------------------------


def test_a_member_with_sigterm_leaves_after_a_step_and_is_not_replaced(three: Job) -> None:
    three.sigterm("w1")
    assert three.pending_through == 1
    assert three.state.target_workers == 2
    three.enter("w1", step=11)
    assert three.told_to_leave("w1") == ["SIGTERM"]
    three.exit("w1")
    three.resume("w0", "w2", step=11)
    assert three.members == ["w0", "w2"]
    assert three.broken_through == 0
    assert three.launches == ["w0", "w1", "w2"]
    assert three.last("worker_exited")["failed"] is False


@pytest.mark.parametrize("exits_first", [True, False])
def test_the_order_of_exit_and_entry_does_not_matter_for_a_planned_leave(
    three: Job, exits_first: bool
) -> None:
    three.sigterm("w1")
    if exits_first:
        three.exit("w1")
    three.enter("w0", "w2", step=11)
    if not exits_first:
        three.exit("w1")
    three.running("w0", "w2", step=11)
    assert three.round_number == 2
    assert three.broken_through == 0


def test_a_second_sigterm_changes_nothing(three: Job) -> None:
    three.sigterm("w1")
    before = three.state
    three.sigterm("w1")
    assert three.state == before


def test_a_leaving_member_that_is_killed_before_it_left_breaks_the_round(three: Job) -> None:
    three.sigterm("w1")
    assert three.broken_through == 0
    three.kill("w1")
    assert three.broken_through == 1, "the survivors may hang in a collective with it"
    three.enter("w0", "w2", step=10)
    assert three.members == ["w0", "w2"]
    assert three.launches == ["w0", "w1", "w2"], "it was asked to leave: no replacement"


def test_a_failure_is_replaced_although_another_worker_is_just_leaving(three: Job) -> None:
    three.sigterm("w2")
    three.kill("w1")
    assert three.state.target_workers == 2
    assert three.launches[-1] == "w3", "w0 alone would be one worker too few"


def test_a_member_that_is_told_to_leave_before_its_round_runs_leaves_in_the_next(
    three: Job,
) -> None:
    three.kill("w2")
    three.enter("w0", "w1", step=10)
    three.remove("w1")
    three.running("w0", "w1", step=10)
    assert three.round_number == 2
    assert three.pending_through == 2
    three.enter("w0", "w1", step=11)
    assert three.members == ["w0"]
    assert three.told_to_leave("w1") == ["removed on request"]


# --- a worker without a rank -------------------------------------------------------------


def test_a_worker_that_waits_at_the_entrance_leaves_at_once(three: Job) -> None:
    three.kill("w2")
    three.enter("w1", step=10)
    three.sigterm("w1")
    assert three.told_to_leave("w1") == ["SIGTERM"]
    three.enter("w0", step=10)
    assert three.members == ["w0"]


def test_a_worker_that_is_still_starting_is_ended_when_it_is_removed() -> None:
    job = Job(3)
    job.ready("w0", "w1")
    job.send(act.Started("w2", "localhost", 1))
    job.remove("w2")
    assert job.killed == ["w2"]
    job.kill("w2")
    assert job.members == ["w0", "w1"]
    assert job.launches == ["w0", "w1", "w2"]


def test_a_spare_leaves_without_disturbing_the_round() -> None:
    job = running_job(3, micro_batches=2)
    job.sigterm("w2")
    assert job.told_to_leave("w2") == ["SIGTERM"]
    job.exit("w2")
    assert job.pending_through == 0
    assert job.round_number == 1


# --- everybody ---------------------------------------------------------------------------


def test_the_job_ends_as_failed_when_everybody_has_left() -> None:
    job = running_job(2)
    job.sigterm("w0")
    job.sigterm("w1")
    job.exit("w0", "w1")
    assert job.end == act.EndJob(
        Outcome.FAILED,
        "all workers have left before the training was finished. `run --resume` with this "
        "--job_dir goes on from the newest checkpoint.",
    )


def test_the_text_for_a_job_that_all_have_left_does_not_blame_an_old_failure() -> None:
    job = running_job(2)
    job.kill("w1")
    job.ready("w2")
    job.resume("w0", "w2", step=10)
    job.sigterm("w0")
    job.sigterm("w2")
    job.exit("w0", "w2")
    assert job.end is not None
    assert "restarts are used up" not in job.end.reason, "1 of 10 was used"
    assert "all workers have left" in job.end.reason
