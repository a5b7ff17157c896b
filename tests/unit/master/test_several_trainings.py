"""Several trainings in one job: how one follows the other, and what happens between them."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.state import WorkerPhase
from hvd_elastic_keras.master.machine.status import job_status
from tests.unit.master.membership_driver import FINISHED, Job, running_job


@pytest.fixture
def between() -> Job:
    """Returns three workers that have finished training 1, in round 1, after 30 steps."""
    job = Job(3, heartbeat_timeout_s=1e9)
    job.start()
    job.heartbeat("w0", "w1", "w2", step=30)
    job.done("w0", "w1", "w2", step=30)
    assert job.end is None
    return job


@pytest.fixture
def second(between: Job) -> Job:
    """Returns the same workers at step 5 of training 2, in round 2."""
    between.ready("w0", "w1", "w2")
    between.running("w0", "w1", "w2")
    between.heartbeat("w0", "w1", "w2", step=5)
    assert between.round_number == 2
    return between


# --- from one training to the next -------------------------------------------------------


def test_the_same_workers_train_again_in_a_new_round_without_a_state(second: Job) -> None:
    assert second.members == ["w0", "w1", "w2"]
    assert second.places["w1"].sync
    assert not second.places["w0"].root_has_state
    assert [second.worker(w).seniority for w in second.members] == [0, 1, 2]
    assert second.state.rounds.broken_through == 0
    assert second.launches == ["w0", "w1", "w2"]


def test_the_most_senior_worker_is_the_root_of_the_second_training(between: Job) -> None:
    between.ready("w2", "w1", "w0")
    assert between.members == ["w0", "w1", "w2"]


def test_steps_count_from_0_in_every_training(between: Job) -> None:
    between.ready("w0", "w1", "w2")
    assert between.state.training.newest_step == 0
    between.running("w0", "w1", "w2")
    assert between.events("round_running")[-1]["steps_lost"] == 0
    assert job_status(between.config, between.state, between.now).step == 0


def test_a_heartbeat_from_the_training_before_does_not_count(between: Job) -> None:
    between.joined("w0")
    old = protocol.Heartbeat(
        worker_id="w0", training=1, round=1, step=30, progress=30, phase="waiting"
    )
    between.send(old)
    assert between.state.training.newest_step == 0
    assert between.worker("w0").step == 0


def test_the_first_training_is_not_numbered_on_the_console_and_the_second_one_is(
    second: Job,
) -> None:
    assert second.said == [
        "round 1: 3 workers (w0, w1, w2) start, 3+3+2 micro-batches",
        "round 2: 3 workers (w0, w1, w2) start training 2, 3+3+2 micro-batches",
    ]


def test_events_carry_the_number_of_the_training(second: Job) -> None:
    assert [e["training"] for e in second.events("round_running")] == [1, 2]
    ready = second.events("worker_ready")
    assert [e["training"] for e in ready] == [1, 1, 1, 2, 2, 2]
    assert ["start_up_s" in e for e in ready] == [True] * 3 + [False] * 3


def test_the_status_tells_that_the_script_goes_on_and_then_the_next_training(between: Job) -> None:
    status = job_status(between.config, between.state, between.now)
    assert (status.phase, status.training, status.step) == ("done", 1, 30)
    between.ready("w0", "w1", "w2")
    between.running("w0", "w1", "w2")
    status = job_status(between.config, between.state, between.now)
    assert (status.phase, status.training, status.round) == ("running", 2, 2)


def test_the_capacity_is_that_of_the_new_training(between: Job) -> None:
    between.micro_batches = 2
    between.ready("w0", "w1", "w2")
    assert between.members == ["w0", "w1"]


def test_no_micro_batches_mean_no_limit_but_max_workers() -> None:
    job = Job(4, micro_batches=0, max_workers=4)
    job.start()
    assert len(job.members) == 4


def test_a_second_training_that_is_too_small_for_min_workers_ends_the_job() -> None:
    job = Job(2, min_workers=2)
    job.start()
    job.done("w0", "w1", step=9)
    job.micro_batches = 1
    job.ready("w0")
    assert job.end is not None
    assert "min_workers=2" in job.end.reason


def test_min_workers_hold_in_the_second_training() -> None:
    job = Job(2, min_workers=2, heartbeat_timeout_s=1e9)
    job.start()
    job.done("w0", "w1", step=9)
    job.ready("w0")
    job.wait(1e4)
    assert job.members == []
    assert job.at_entrance == {"w0"}
    assert len(job.said) == 1, "w1 is in its script and will come"
    job.ready("w1")
    assert job.places["w1"].round == 2


# --- waiting for each other --------------------------------------------------------------


def test_the_second_training_waits_for_those_in_the_script_before_it(between: Job) -> None:
    between.ready("w0", "w1")
    between.wait(119.0)
    assert between.places["w0"].round == 1
    between.ready("w2")
    assert between.members == ["w0", "w1", "w2"]


def test_it_goes_on_without_them_after_the_start_window_and_they_join_later(between: Job) -> None:
    between.ready("w0", "w1")
    between.wait(120.0)
    assert between.members == ["w0", "w1"]
    between.running("w0", "w1")
    between.ready("w2")
    between.enter("w0", "w1", step=3)
    between.running("w0", "w1", "w2", step=3)
    assert between.members == ["w0", "w1", "w2"]
    assert between.said[-1].startswith(
        "round 3: 2 → 3 workers (w0, w1, w2), 3+3+2 micro-batches: w2 joins; stalled"
    )


def test_it_does_not_wait_for_a_worker_whose_script_has_ended(between: Job) -> None:
    between.ready("w0", "w1")
    between.exit("w2")
    assert between.members == ["w0", "w1"]
    assert between.launches == ["w0", "w1", "w2"]


def test_it_does_not_wait_for_a_worker_that_is_to_leave(between: Job) -> None:
    between.sigterm("w2")
    between.ready("w0", "w1")
    assert between.members == ["w0", "w1"]
    between.joined("w2")
    between.enter("w2", has_state=False)
    assert between.told_to_leave("w2") == ["SIGTERM"]


def test_a_worker_in_its_script_is_not_evicted_for_being_silent() -> None:
    job = Job(2)
    job.start()
    job.done("w0", "w1", step=9)
    job.wait(1e4)
    assert job.killed == []


# --- workers that come too late ----------------------------------------------------------


def test_a_new_worker_is_sent_on_through_the_old_training_and_joins_the_current(
    second: Job,
) -> None:
    second.send(act.AddWorkers(1))
    second.micro_batches = 1
    second.joined("w3", training=1)
    assert second.state.training.num_micro_batches == 8, "those of training 1 do not matter"
    second.enter("w3", has_state=False)
    assert second.told_over("w3") == 1
    assert second.state.rounds.pending_through == 0, "the others train on"
    second.micro_batches = 8
    second.ready("w3")
    assert second.state.rounds.pending_through == 2
    second.enter("w0", "w1", "w2", step=6)
    assert second.members == ["w0", "w1", "w2", "w3"]


def test_an_answer_that_was_lost_on_the_way_is_given_again(second: Job) -> None:
    second.send(act.AddWorkers(1))
    second.ready("w3")
    second.enter("w3", has_state=False)
    assert second.told_over("w3") == 2


def test_a_spare_is_sent_on_when_the_training_is_finished() -> None:
    job = Job(3, micro_batches=2)
    job.start()
    job.done("w0", step=30)
    assert job.told_over("w2") == 0, "w1 may yet need it"
    job.done("w1", step=30)
    assert job.told_over("w2") == 1
    job.micro_batches = 3
    job.ready("w0", "w1", "w2")
    assert job.members == ["w0", "w1", "w2"]


def test_a_worker_that_becomes_warm_after_the_training_is_sent_on(between: Job) -> None:
    between.send(act.AddWorkers(1))
    between.ready("w3")
    assert between.told_over("w3") == 1
    between.ready("w0", "w1", "w2")
    assert between.at_entrance == {"w0", "w1", "w2"}, "w3 is coming, too"
    between.ready("w3")
    assert between.members == ["w0", "w1", "w2", "w3"]


def test_a_worker_may_miss_a_whole_training(between: Job) -> None:
    between.ready("w0", "w1")
    between.wait(120.0)
    between.running("w0", "w1")
    between.done("w0", "w1", step=4)
    between.ready("w2")
    assert between.told_over("w2") == 1
    between.ready("w2", "w1", "w0")
    assert between.members == ["w0", "w1", "w2"]
    assert between.said[-1].startswith("round 2")
    between.running("w0", "w1", "w2")
    assert between.said[-1] == (
        "round 3: 3 workers (w0, w1, w2) start training 3, 3+3+2 micro-batches"
    )


# --- the seam ----------------------------------------------------------------------------


def test_a_round_that_is_over_before_all_have_confirmed_it_has_run() -> None:
    """Trainings take milliseconds: messages of one worker overtake messages of another."""
    job = Job(2)
    job.ready("w0", "w1")
    job.running("w1", step=4)
    job.done("w1", step=4)
    assert [e["members"] for e in job.events("round_running")] == [["w0", "w1"]]
    assert job.worker("w0").seniority == 0
    job.ready("w1")
    job.running("w0", step=4)
    job.done("w0", step=4, training=1)
    job.ready("w0")
    assert job.members == ["w0", "w1"]
    job.running("w0", "w1")
    assert [e["steps_lost"] for e in job.events("round_running")] == [0, 0]


def test_a_worker_may_join_before_it_is_heard_that_it_is_done(between: Job) -> None:
    between.joined("w0", training=2)
    between.done("w0", step=30, training=1)
    assert between.worker("w0").phase is WorkerPhase.READY
    assert not between.state.training.finishing


def test_the_last_members_may_finish_when_others_have_begun_the_next_training() -> None:
    job = Job(2)
    job.start()
    job.done("w0", step=30)
    job.ready("w0")
    assert job.members == []
    job.done("w1", step=30)
    assert job.end is None
    job.ready("w1")
    assert job.members == ["w0", "w1"]


def test_a_member_whose_last_barrier_failed_is_sent_on_once_the_job_is_further() -> None:
    job = Job(3)
    job.start()
    job.done("w0", step=30)
    job.ready("w0")
    job.kill("w2")
    assert job.state.rounds.broken_through == 1, "w1 may hang in the barrier"
    assert act.CloseRendezvous(1) in job.actions
    job.enter("w1", step=30, failure="a collective failed", training=1)
    assert job.told_over("w1") == 1
    job.ready("w1")
    job.ready("w3")
    job.ready("w3")
    assert job.members == ["w0", "w1", "w3"]


def test_members_whose_last_barrier_failed_finish_among_themselves_before_the_next() -> None:
    job = Job(3)
    job.start()
    job.done("w0", step=30)
    job.kill("w0")
    job.enter("w1", "w2", step=30, failure="a collective failed")
    job.running("w1", "w2", step=30)
    assert job.round_number == 2
    job.done("w1", "w2", step=30)
    job.ready("w1")
    assert job.launches[-1] == "w3"
    job.ready("w2", "w3")
    assert job.told_over("w3") == 1
    job.ready("w3")
    assert job.members == ["w1", "w2", "w3"]


def test_a_round_of_the_old_training_that_still_forms_is_forgotten() -> None:
    job = Job(3)
    job.start()
    job.done("w0", step=30)
    job.kill("w2")
    assert job.state.rounds.forming is not None
    job.ready("w0")
    assert job.state.rounds.forming is None
    job.enter("w1", step=30, failure="a collective failed")
    assert job.told_over("w1") == 1


def test_who_waits_for_a_last_round_is_sent_on_when_the_next_training_begins() -> None:
    job = Job(4)
    job.start()
    job.done("w0", step=30)
    job.kill("w3")
    job.enter("w1", step=30, failure="a collective failed")
    assert job.at_entrance == {"w1"}
    job.joined("w0")
    assert job.told_over("w1") == 1
    assert job.at_entrance == set()


# --- losses between two trainings --------------------------------------------------------


def test_a_worker_killed_between_two_trainings_is_replaced_when_the_next_begins(
    between: Job,
) -> None:
    between.kill("w1")
    assert between.launches == ["w0", "w1", "w2"], "there may be no other training"
    between.ready("w0")
    assert between.launches[3:] == ["w3"]
    assert between.state.restarts.used == 1
    assert between.said[-1] == (
        "w1 was killed by SIGKILL before training 2; starting a replacement (restart 1 of 10)"
    )
    between.ready("w2", "w3")
    assert between.told_over("w3") == 1
    between.ready("w3")
    assert between.members == ["w0", "w2", "w3"]


def test_two_losses_are_told_in_one_line(between: Job) -> None:
    between.kill("w1")
    between.fail("w2")
    between.ready("w0")
    assert between.said[-1] == (
        "w1 was killed by SIGKILL, w2 failed with exit code 1 before training 2; "
        "starting 2 replacements (restarts 1 to 2 of 10)"
    )


def test_losses_between_two_trainings_are_replaced_only_as_restarts_are_left() -> None:
    job = Job(2, max_restarts=0)
    job.start()
    job.done("w0", "w1", step=30)
    job.kill("w1")
    job.ready("w0")
    assert job.launches == ["w0", "w1"]
    assert job.said[-1] == (
        "w1 was killed by SIGKILL before training 2; no restart is left of 0 (--max_restarts)"
    )
    assert job.members == ["w0"]


def test_a_member_killed_after_others_were_done_is_replaced_for_the_next_training() -> None:
    job = Job(2)
    job.start()
    job.done("w0", step=30)
    job.kill("w1")
    assert job.launches == ["w0", "w1"]
    job.ready("w0")
    assert job.launches[2:] == ["w2"]


def test_a_worker_that_is_lost_after_the_next_training_has_begun_is_replaced_at_once(
    between: Job,
) -> None:
    between.ready("w0", "w1")
    between.kill("w2")
    assert between.launches[3:] == ["w3"]
    assert between.said[-1] == "w2 was killed by SIGKILL; starting a replacement (restart 1 of 10)"


def test_an_own_error_in_the_second_training_is_counted_for_itself(second: Job) -> None:
    second.heartbeat("w0", "w1", "w2", step=40)
    second.fail("w0")
    assert second.state.restarts.own_errors == 1
    second.enter("w1", "w2", step=40)
    second.running("w1", "w2", step=40)
    second.done("w1", "w2", step=40)
    second.ready("w1")
    assert (second.state.restarts.own_errors, second.state.restarts.own_errors_step) == (0, 0)


# --- the end of the script ---------------------------------------------------------------


def test_the_job_ends_well_after_two_trainings(second: Job) -> None:
    second.done("w0", "w1", "w2", step=12)
    second.exit("w2", "w0")
    assert second.end is None
    second.exit("w1")
    assert second.end == act.EndJob(Outcome.FINISHED, "finished")
    assert second.state.training.newest_step == 12


def test_a_worker_still_starting_does_not_hold_back_the_end_of_the_script(between: Job) -> None:
    between.send(act.AddWorkers(1))
    between.exit("w0", "w1", "w2")
    assert between.end == act.EndJob(Outcome.FINISHED, "finished")


def test_one_worker_at_the_end_of_the_script_is_enough_if_the_others_were_killed(
    between: Job,
) -> None:
    between.kill("w0")
    between.exit("w1")
    between.kill("w2")
    assert between.end == act.EndJob(Outcome.FINISHED, "finished")
    assert between.launches == ["w0", "w1", "w2"]


def test_an_error_in_the_script_after_the_training_fails_the_job(between: Job) -> None:
    between.fail("w1", "w0", "w2")
    assert between.end == act.EndJob(
        Outcome.FAILED, "w0 failed with exit code 1 after the training"
    )
    assert between.state.restarts.last_failure == WorkerExit("w0", 1), "its log is shown"
    assert between.launches == ["w0", "w1", "w2"]
    assert [e["failed"] for e in between.events("worker_exited")] == [True] * 3


def test_an_error_of_one_worker_after_the_training_fails_the_job_in_the_end(between: Job) -> None:
    between.exit("w0")
    between.fail("w1")
    assert between.end is None, "w2 may yet begin another training"
    between.exit("w2")
    assert between.end == act.EndJob(
        Outcome.FAILED, "w1 failed with exit code 1 after the training"
    )


def test_an_error_between_two_trainings_is_forgotten_when_the_others_train_on(
    between: Job,
) -> None:
    between.fail("w2")
    between.ready("w0", "w1")
    between.ready("w3")
    between.ready("w3")
    between.running("w0", "w1", "w3")
    between.done("w0", "w1", "w3", step=5)
    between.exit("w0", "w1", "w3")
    assert between.end == act.EndJob(Outcome.FINISHED, "finished")


def test_an_error_of_a_worker_that_has_never_trained_does_not_fail_the_job(between: Job) -> None:
    between.send(act.AddWorkers(1))
    between.ready("w3")
    between.fail("w3")
    between.exit("w0", "w1", "w2")
    assert between.end == act.EndJob(Outcome.FINISHED, "finished")


def test_a_script_that_no_worker_has_ended_is_no_success(between: Job) -> None:
    between.kill("w0", "w1", "w2")
    assert between.end is not None
    assert not between.end.succeeded
    assert "no worker has come to the end of the script" in between.end.reason
    assert "w2 was killed by SIGKILL" in between.end.reason


def test_a_new_worker_may_bring_the_script_to_its_end_when_all_others_were_killed(
    between: Job,
) -> None:
    between.send(act.AddWorkers(1))
    between.kill("w0", "w1", "w2")
    assert between.end is None
    between.ready("w3")
    assert between.told_over("w3") == 1
    between.exit("w3")
    assert between.end == act.EndJob(Outcome.FINISHED, "finished")


def test_a_stop_between_two_trainings_is_told_at_the_entrance_of_the_next(between: Job) -> None:
    between.kill("w2")
    between.send(act.StopJob("interrupted"))
    between.ready("w0", "w1")
    assert between.told_to_leave("w0") == ["interrupted"]
    between.exit("w0", "w1")
    assert between.end == act.EndJob(Outcome.STOPPED, "interrupted")
    assert between.launches == ["w0", "w1", "w2"]


def test_a_script_that_ends_although_the_job_is_to_stop_has_finished(between: Job) -> None:
    between.send(act.StopJob("interrupted"))
    between.exit("w0", "w1", "w2")
    assert between.end == act.EndJob(Outcome.FINISHED, "finished")


def test_a_worker_that_is_told_to_leave_between_two_trainings_opens_no_round(
    between: Job,
) -> None:
    between.sigterm("w1")
    between.wait(1.0)
    assert between.state.rounds.forming is None
    assert len(between.said) == 1


def test_who_was_done_and_leaves_does_not_disturb_those_who_still_finish() -> None:
    job = Job(3)
    job.start()
    job.done("w0", step=30)
    job.sigterm("w0")
    job.wait(1.0)
    assert job.state.rounds.forming is None
    job.done("w1", "w2", step=30)
    job.exit("w0", "w1", "w2")
    assert job.end == act.EndJob(Outcome.FINISHED, "finished")


# --- configuration errors ----------------------------------------------------------------


def test_a_refusal_ends_the_job_at_once_with_its_message() -> None:
    job = Job(2)
    for worker_id in ("w0", "w1"):
        job.send(protocol.Refused(worker_id=worker_id, message="epochs=0 was given"))
        job.fail(worker_id)
    assert job.end == act.EndJob(Outcome.REFUSED, "epochs=0 was given")
    assert job.launches == ["w0", "w1"]
    assert job.said == []
    assert len(job.events("worker_refused")) == 1


def test_a_newcomer_that_is_refused_gives_its_slot_back_and_the_others_go_on() -> None:
    job = Job(3)
    job.start()
    job.heartbeat("w0", "w1", "w2", step=40)
    job.kill("w1")
    job.resume("w0", "w2", step=40)
    job.ready("w3")
    job.send(protocol.Refused(worker_id="w3", message="The first batch is not the same"))
    job.fail("w3")
    assert not job.state.ended
    assert job.launches == ["w0", "w1", "w2", "w3"]
    assert "w3 cannot take part, and the others go on without it: The first" in job.said[-1]
    job.resume("w0", "w2", step=40)
    job.heartbeat("w0", "w2", step=50)
    assert job.state.rounds.running.members == ("w0", "w2")
    assert not job.last("worker_exited")["failed"]


def test_a_newcomer_that_is_refused_in_the_second_training_ends_nothing() -> None:
    job = Job(2)
    job.start()
    job.heartbeat("w0", "w1", step=5)
    job.kill("w1")
    job.resume("w0", step=5)
    job.done("w0", step=9)
    job.joined("w0", training=2)
    job.enter("w0", training=2)
    job.joined("w2", training=2)
    job.enter("w2", training=2)
    job.send(protocol.Refused(worker_id="w2", message="The first batch is not the same"))
    job.fail("w2")
    job.resume("w0")
    assert not job.state.ended
    assert job.state.rounds.running.members == ("w0",)
    job.send(protocol.Refused(worker_id="w0", message="no such file"))
    assert job.end == act.EndJob(Outcome.REFUSED, "no such file")


def test_a_refusal_between_two_trainings_dismisses_who_waits_for_the_next(between: Job) -> None:
    between.ready("w0")
    between.send(protocol.Refused(worker_id="w1", message="epochs=0 was given"))
    assert between.told_to_leave("w0") == ["epochs=0 was given"]
    assert between.end == act.EndJob(Outcome.REFUSED, "epochs=0 was given")


# --- a training that an error of callbacks ends on all workers ----------------------------


@pytest.fixture
def raised() -> Job:
    """Returns two workers whose training an error of callbacks has ended after 30 steps."""
    job = Job(2, heartbeat_timeout_s=1e9)
    job.start()
    job.heartbeat("w0", "w1", step=30)
    job.done("w0", "w1", step=30, raised=True)
    return job


def test_a_script_that_catches_the_error_and_ends_has_finished_the_job(raised: Job) -> None:
    raised.exit("w0")
    assert raised.end is None
    raised.exit("w1")
    assert raised.end == FINISHED
    assert raised.launches == ["w0", "w1"]


def test_a_script_that_catches_the_error_may_train_again(raised: Job) -> None:
    raised.ready("w0", "w1")
    raised.running("w0", "w1")
    assert raised.members == ["w0", "w1"]
    raised.fail("w1")
    assert raised.launches == ["w0", "w1", "w2"], "an error in the second training"


def test_workers_that_do_not_catch_it_have_failed_in_the_training(raised: Job) -> None:
    raised.fail("w0", "w1")
    assert raised.launches == ["w0", "w1", "w2", "w3"]
    assert raised.state.restarts.own_errors == 2
    assert raised.end is None


def test_a_worker_that_is_killed_after_it_is_replaced_for_the_next_training(raised: Job) -> None:
    raised.kill("w1")
    assert raised.launches == ["w0", "w1"]
    raised.ready("w0")
    assert raised.launches == ["w0", "w1", "w2"]


def test_a_newcomer_waits_until_it_is_known_whether_the_error_is_caught(raised: Job) -> None:
    raised.add_ready("w2")
    assert "w2" not in raised.places
    raised.exit("w0", "w1")
    assert raised.told_over("w2") == 1


def test_a_newcomer_trains_on_if_nobody_catches_the_error(raised: Job) -> None:
    raised.add_ready("w2")
    raised.fail("w0", "w1")
    assert raised.places["w2"].size == 1


def test_a_newcomer_whose_round_was_open_already_waits_too() -> None:
    job = running_job(2, heartbeat_timeout_s=1e9)
    job.add_ready("w2")
    assert job.pending_through == 1
    job.done("w0", "w1", step=30, raised=True)
    assert "w2" not in job.places
    job.ready("w0", "w1")
    assert job.told_over("w2") == 1
