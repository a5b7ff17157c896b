"""Membership, one event at a time: who trains, in which round, and when the job ends."""

from __future__ import annotations

import pytest
from membership_driver import Job

from hvd_elastic_keras import protocol
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.change_request import Change, plan_change
from hvd_elastic_keras.master.state import WorkerPhase, reading_of, update_for


@pytest.fixture
def three() -> Job:
    """Three workers that run round 1 at step 10."""
    job = Job(3)
    job.start(step=10)
    assert job.round_number == 1
    return job


# --- the start ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_workers_that_start_together_share_the_first_round(num_workers: int) -> None:
    job = Job(num_workers)
    assert job.launches == [f"w{i}" for i in range(num_workers)]
    job.ready(*job.workers)
    assert job.members == job.workers
    assert job.state.running is None
    job.running(*job.members)
    assert job.round_number == 1
    assert job.events("round_running")[-1]["world_size"] == num_workers
    assert job.worker("w0").seniority == 0


def test_a_warm_worker_waits_for_those_that_are_still_starting() -> None:
    job = Job(2, start_timeout_s=120.0, heartbeat_timeout_s=1e9)
    job.ready("w0")
    job.wait(119.0)
    assert job.members == []
    job.wait(1.0)
    assert job.members == ["w0"]


def test_a_worker_that_starts_later_than_the_time_limit_joins_the_next_round() -> None:
    job = Job(2, start_timeout_s=120.0, heartbeat_timeout_s=1e9)
    job.ready("w0")
    job.wait(120.0)
    job.running("w0")
    job.ready("w1")
    job.enter("w0", step=3)
    job.running("w0", "w1", step=3)
    assert job.state.running is not None
    assert job.state.running.members == ("w0", "w1")
    assert job.state.broken_through == 0


def test_a_worker_may_come_to_the_entrance_before_its_joined_message_arrives() -> None:
    job = Job(1)
    job.enter("w0", has_state=False)
    assert job.members == []
    job.joined("w0")
    assert job.members == ["w0"]


def test_the_first_round_has_no_state_and_later_rounds_have_one() -> None:
    job = Job(2)
    job.start()
    assert not job.places["w0"].root_has_state
    job.kill("w1")
    job.enter("w0", step=1)
    assert job.places["w0"].root_has_state


def test_a_start_below_min_workers_says_nothing_while_workers_are_starting() -> None:
    job = Job(2, min_workers=2, heartbeat_timeout_s=1e9)
    job.ready("w0")
    job.wait(500.0)
    assert job.members == []
    assert job.said == []


def test_a_start_in_good_order_says_nothing_of_waiting() -> None:
    """The last worker is warm, but has not come to the entrance yet, for a moment."""
    job = Job(2, min_workers=2)
    job.start()
    assert job.round_number == 1
    assert job.events("waiting") == []
    assert len(job.said) == 1


# --- where the input is read -------------------------------------------------------------


def reads(job: Job, worker_id: str, step: int, training: int = 1) -> protocol.InputPosition:
    """A heartbeat of a worker that reads its input from the front."""
    position = protocol.InputPosition(
        training=training, progress=step, phase="train", epoch=0, step=step
    )
    job.send(
        protocol.Heartbeat(
            worker_id=worker_id,
            training=training,
            round=1,
            step=step,
            progress=step,
            phase="training",
            reading=position,
        )
    )
    return position


def test_newcomers_are_told_where_the_one_reads_who_is_furthest(three: Job) -> None:
    assert reading_of(three.state) is None
    furthest = reads(three, "w1", step=14)
    reads(three, "w0", step=13)
    three.kill("w1")
    assert reading_of(three.state) == furthest


def test_nobody_reads_where_all_are_lost(three: Job) -> None:
    reads(three, "w0", step=14)
    three.kill("w0", "w1", "w2")
    three.ready("w3")
    assert reading_of(three.state) is None
    three.running("w3", step=10)
    assert reading_of(three.state) is None
    position = reads(three, "w3", step=11)
    assert reading_of(three.state) == position


def test_where_an_earlier_training_was_read_is_forgotten(three: Job) -> None:
    reads(three, "w0", step=14)
    three.done("w0", "w1", "w2", step=20)
    three.joined("w0")
    assert three.state.training == 2
    reads(three, "w1", step=14)
    assert reading_of(three.state) is None


# --- joining -----------------------------------------------------------------------------


def test_a_joiner_changes_the_running_round_without_breaking_it(three: Job) -> None:
    three.send(act.AddWorkers(1))
    three.ready("w3")
    assert three.round_number == 1, "the others train on"
    assert three.state.pending_through == 1
    three.enter("w0", "w1", "w2", step=12)
    three.running("w0", "w1", "w2", "w3", step=12)
    assert three.round_number == 2
    assert three.members == ["w0", "w1", "w2", "w3"]
    assert three.state.broken_through == 0
    assert not three.of(act.CloseRendezvous)
    assert three.places["w3"].sync


def test_joiners_that_arrive_together_share_a_round(three: Job) -> None:
    three.send(act.AddWorkers(2))
    three.ready("w3")
    three.wait(1.0)
    assert three.state.forming is None, "w4 is awaited for join_window_s"
    three.ready("w4")
    three.enter("w0", "w1", "w2", step=12)
    assert three.members == ["w0", "w1", "w2", "w3", "w4"]
    assert three.places["w4"].round == 2


def test_a_joiner_does_not_wait_for_another_one_longer_than_the_join_window(three: Job) -> None:
    three.send(act.AddWorkers(2))
    three.ready("w3")
    three.wait(4.9)
    assert three.state.forming is None
    three.wait(0.2)
    assert three.state.pending_through == 1


def test_a_joiner_is_taken_into_a_round_that_is_already_forming(three: Job) -> None:
    three.send(act.AddWorkers(1))
    three.kill("w2")
    three.enter("w0", step=10)
    three.ready("w3")
    three.enter("w1", step=10)
    assert three.members == ["w0", "w1", "w3"]


def test_a_joiner_that_comes_after_the_assignment_gets_the_round_after_that(three: Job) -> None:
    three.kill("w2")
    three.enter("w0", "w1", step=10)
    three.ready("w3")
    assert three.members == ["w0", "w1"]
    three.running("w0", "w1", step=10)
    assert three.state.pending_through == 2
    three.enter("w0", "w1", step=11)
    assert three.members == ["w0", "w1", "w3"]


def test_a_joiner_that_dies_at_the_entrance_leaves_the_round_to_the_others(three: Job) -> None:
    three.send(act.AddWorkers(1))
    three.ready("w3")
    three.kill("w3")
    three.enter("w0", "w1", "w2", step=11)
    assert three.members == ["w0", "w1", "w2"]
    assert three.state.broken_through == 0


# --- deaths ------------------------------------------------------------------------------


def test_a_killed_member_breaks_its_round_and_the_survivors_get_the_next_one(three: Job) -> None:
    three.kill("w1")
    assert three.state.broken_through == 1
    assert act.CloseRendezvous(1) in three.actions
    three.enter("w0", "w2", step=10)
    assert three.members == ["w0", "w2"]
    three.running("w0", "w2", step=10)
    assert three.round_number == 2
    assert three.events("worker_exited")[-1]["cause"] == "was killed by SIGKILL"
    assert three.events("worker_exited")[-1]["failed"] is True
    assert three.launches[-1] == "w3", "a replacement is started"


def test_rank_0_is_the_survivor_with_the_newest_step(three: Job) -> None:
    three.kill("w0")
    three.enter("w1", step=10)
    three.enter("w2", step=11)
    assert three.members == ["w2", "w1"]
    assert three.places["w1"].sync


def test_rank_0_is_the_most_senior_among_equally_new_survivors(three: Job) -> None:
    three.kill("w0")
    three.enter("w2", "w1", step=11)
    assert three.members == ["w1", "w2"]
    assert not three.places["w1"].sync, "all hold the same state"


def test_progress_and_not_the_optimizer_step_decides_who_is_newest(three: Job) -> None:
    three.kill("w0")
    three.enter("w1", step=10, progress=14)
    three.enter("w2", step=10, progress=15)
    assert three.members == ["w2", "w1"]


def test_seniority_outlives_a_round(three: Job) -> None:
    three.kill("w0")
    three.ready("w3")
    three.enter("w1", "w2", step=10)
    three.running("w1", "w2", "w3", step=10)
    assert [three.worker(w).seniority for w in ("w1", "w2", "w3")] == [1, 2, 3]
    three.kill("w1")
    three.enter("w3", "w2", step=20)
    assert three.members == ["w2", "w3"]


def test_two_members_killed_at_once_make_one_new_round(three: Job) -> None:
    three.kill("w1", "w2")
    three.enter("w0", step=10)
    three.running("w0", step=10)
    assert three.round_number == 2
    assert three.members == ["w0"]
    reason = three.events("round_running")[-1]["reason"]
    assert "w1 was killed" in reason
    assert "w2 was killed" in reason
    assert three.state.restarts_used == 2


def test_a_member_killed_while_a_round_forms_is_not_awaited(three: Job) -> None:
    three.kill("w1")
    three.enter("w0", step=10)
    three.kill("w2")
    assert three.members == ["w0"]


def test_a_waiting_member_killed_at_the_entrance_is_not_assigned(three: Job) -> None:
    three.kill("w1")
    three.enter("w0", step=10)
    three.kill("w0")
    three.enter("w2", step=10)
    assert three.members == ["w2"]


def test_a_member_killed_before_a_planned_change_is_complete_breaks_the_old_round(
    three: Job,
) -> None:
    three.send(act.AddWorkers(1))
    three.ready("w3")
    three.enter("w0", step=11)
    three.kill("w1")
    assert three.state.broken_through == 1, "w2 may hang in a collective with w1"
    three.enter("w2", step=10)
    assert three.members == ["w0", "w2", "w3"]


def test_a_member_killed_after_the_assignment_breaks_the_new_round(three: Job) -> None:
    three.kill("w2")
    three.enter("w0", "w1", step=10)
    assert three.places["w0"].round == 2
    three.running("w0", step=10)
    three.kill("w1")
    assert three.state.broken_through == 2
    assert act.CloseRendezvous(2) in three.actions
    three.enter("w0", step=10)
    three.running("w0", step=10)
    assert three.round_number == 3
    assert three.members == ["w0"]


def test_a_confirmation_of_a_broken_round_is_ignored(three: Job) -> None:
    three.kill("w2")
    three.enter("w0", "w1", step=10)
    three.kill("w1")
    three.running("w0", step=10)
    assert three.state.running is None


def test_a_survivor_that_comes_before_the_master_hears_of_the_death_breaks_the_round(
    three: Job,
) -> None:
    three.enter("w0", step=10, failure="a collective failed")
    assert three.state.broken_through == 1
    three.enter("w1", step=10, failure="a collective failed")
    assert three.members != ["w0", "w1"], "w2 is not known to be dead"
    three.kill("w2")
    assert three.members == ["w0", "w1"]


def test_a_survivor_whose_new_round_failed_breaks_that_round(three: Job) -> None:
    three.kill("w2")
    three.enter("w0", "w1", step=10)
    three.enter("w0", step=10, failure="Horovod could not be initialised")
    assert three.state.broken_through == 2
    three.enter("w1", step=10)
    assert three.places["w1"].round == 3


def test_a_failure_reported_during_a_planned_change_breaks_the_old_round(three: Job) -> None:
    """Otherwise the others hang in the dead member's collective until a time limit."""
    three.send(act.AddWorkers(1))
    three.ready("w3")
    assert three.state.pending_through == 1
    three.enter("w0", step=10, failure="a collective failed")
    assert three.state.broken_through == 1
    assert act.CloseRendezvous(1) in three.actions


def test_a_member_that_exits_0_before_the_end_counts_as_failed(three: Job) -> None:
    three.exit("w1")
    assert three.state.broken_through == 1
    assert three.events("worker_exited")[-1]["failed"] is True
    assert three.launches[-1] == "w3"


def test_the_second_report_of_a_death_changes_nothing(three: Job) -> None:
    three.kill("w1")
    before = three.state
    three.kill("w1")
    assert three.state == before


def test_a_worker_that_was_given_up_is_told_to_leave(three: Job) -> None:
    three.kill("w1")
    three.enter("w1", step=10)
    assert three.told_to_leave("w1") == ["this worker is no longer part of the job"]
    assert update_for(three.state, "w1").leave == "this worker is no longer part of the job"


# --- what a change costs -----------------------------------------------------------------


def test_the_stall_lasts_from_the_death_to_the_next_running_round(three: Job) -> None:
    three.now += 5.0
    three.kill("w1")
    three.now += 0.2
    three.enter("w0", "w2", step=10)
    three.now += 0.3
    three.running("w0", "w2", step=10)
    assert three.events("round_running")[-1]["stall_s"] == pytest.approx(0.5)
    assert "stalled 0.50 s" in three.said[-1]


def test_the_stall_of_a_planned_change_begins_when_the_first_member_stops(three: Job) -> None:
    three.send(act.AddWorkers(1))
    three.ready("w3")
    three.now += 4.0
    three.enter("w0", step=11, idle_s=0.25)
    three.now += 0.2
    three.enter("w1", "w2", step=11)
    three.now += 0.1
    three.running("w0", "w1", "w2", "w3", step=11)
    assert three.events("round_running")[-1]["stall_s"] == pytest.approx(0.55)


def test_a_joiner_that_asks_again_while_the_others_train_does_not_count_as_a_stall(
    three: Job,
) -> None:
    three.send(act.AddWorkers(1))
    three.ready("w3")
    three.now += 1.0
    three.enter("w3", has_state=False)  # its long poll came to an end
    three.now += 4.0
    three.enter("w0", "w1", "w2", step=11)
    three.running("w0", "w1", "w2", "w3", step=11)
    assert three.events("round_running")[-1]["stall_s"] == pytest.approx(0.0)


def test_the_stall_goes_on_over_a_second_break(three: Job) -> None:
    three.kill("w2")
    three.now += 1.0
    three.enter("w0", "w1", step=10)
    three.now += 1.0
    three.kill("w1")
    three.now += 1.0
    three.enter("w0", step=10)
    three.running("w0", step=10)
    assert three.events("round_running")[-1]["stall_s"] == pytest.approx(3.0)
    assert "3 → 1 worker (w0)" in three.said[-1]


@pytest.mark.parametrize(("resumed_at", "lost"), [(20, 0), (19, 1), (15, 5)])
def test_steps_lost_are_those_between_the_newest_heard_of_and_the_root(
    three: Job, resumed_at: int, lost: int
) -> None:
    three.heartbeat("w0", "w1", "w2", step=20)
    three.kill("w1")
    three.enter("w0", "w2", step=resumed_at)
    three.running("w0", "w2", step=resumed_at)
    assert three.events("round_running")[-1]["steps_lost"] == lost
    assert three.state.newest_step == resumed_at


# --- leaving -----------------------------------------------------------------------------


def test_a_member_with_sigterm_leaves_after_a_step_and_is_not_replaced(three: Job) -> None:
    three.sigterm("w1")
    assert three.state.pending_through == 1
    assert three.state.target_workers == 2
    three.enter("w1", step=11)
    assert three.told_to_leave("w1") == ["SIGTERM"]
    three.exit("w1")
    three.enter("w0", "w2", step=11)
    three.running("w0", "w2", step=11)
    assert three.members == ["w0", "w2"]
    assert three.state.broken_through == 0
    assert three.launches == ["w0", "w1", "w2"]
    assert three.events("worker_exited")[-1]["failed"] is False


@pytest.mark.parametrize("exits_first", [True, False])
def test_the_order_of_exit_and_entry_does_not_matter_for_a_planned_leave(
    three: Job, exits_first: bool
) -> None:
    three.sigterm("w1")
    steps = [lambda: three.exit("w1"), lambda: three.enter("w0", "w2", step=11)]
    for step in steps if exits_first else reversed(steps):
        step()
    three.running("w0", "w2", step=11)
    assert three.round_number == 2
    assert three.state.broken_through == 0


def test_a_second_sigterm_changes_nothing(three: Job) -> None:
    three.sigterm("w1")
    before = three.state
    three.sigterm("w1")
    assert three.state == before


def test_a_leaving_member_that_is_killed_before_it_left_breaks_the_round(three: Job) -> None:
    three.sigterm("w1")
    assert three.state.broken_through == 0
    three.kill("w1")
    assert three.state.broken_through == 1, "the survivors may hang in a collective with it"
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
    three.send(act.RemoveWorker("w1"))
    three.running("w0", "w1", step=10)
    assert three.round_number == 2
    assert three.state.pending_through == 2
    three.enter("w0", "w1", step=11)
    assert three.members == ["w0"]
    assert three.told_to_leave("w1") == ["removed on request"]


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
    job.send(act.RemoveWorker("w2"))
    assert job.killed == ["w2"]
    job.kill("w2")
    assert job.members == ["w0", "w1"]
    assert job.launches == ["w0", "w1", "w2"]


def test_a_spare_leaves_without_disturbing_the_round() -> None:
    job = Job(3, micro_batches=2)
    job.start()
    job.sigterm("w2")
    assert job.told_to_leave("w2") == ["SIGTERM"]
    job.exit("w2")
    assert job.state.pending_through == 0
    assert job.round_number == 1


def test_the_job_ends_as_failed_when_everybody_has_left() -> None:
    job = Job(2)
    job.start()
    job.sigterm("w0")
    job.sigterm("w1")
    job.exit("w0", "w1")
    assert job.end == act.EndJob(False, "all workers have left before the training was finished.")


def test_the_text_for_a_job_that_all_have_left_does_not_blame_an_old_failure() -> None:
    job = Job(2)
    job.start()
    job.kill("w1")
    job.ready("w2")
    job.enter("w0", step=10)
    job.running("w0", "w2", step=10)
    job.sigterm("w0")
    job.sigterm("w2")
    job.exit("w0", "w2")
    assert job.end is not None
    assert "restarts are used up" not in job.end.reason, "1 of 10 was used"
    assert "all workers have left" in job.end.reason


# --- too few workers, restarts -----------------------------------------------------------


def test_a_job_below_min_workers_waits_says_so_once_and_goes_on() -> None:
    job = Job(2, min_workers=2)
    job.start()
    job.kill("w1")
    job.enter("w0", step=5)
    for _ in range(5):
        job.wait(1.0)
        job.heartbeat("w0", step=5)
    waiting = [text for text in job.said if text.startswith("waiting")]
    assert waiting == [
        "waiting: 1 of at least 2 workers are here; a replacement is starting",
    ]
    assert len(job.events("waiting")) == 1
    job.ready("w2")
    job.running("w0", "w2", step=5)
    assert job.round_number == 2
    assert job.members == ["w0", "w2"]
    assert job.state.waiting_since is None


def test_a_waiting_job_without_restarts_says_how_to_add_a_worker() -> None:
    job = Job(2, min_workers=2, max_restarts=0)
    job.start()
    job.kill("w1")
    assert "w1 was killed by SIGKILL; no restart is left of 0 (--max_restarts)" in job.said
    assert job.said[-1] == "waiting: 1 of at least 2 workers are here; add one with `ctl add 1`"


def test_a_job_that_waits_too_long_fails_with_the_settings_that_would_help() -> None:
    job = Job(2, min_workers=2, max_restarts=0, wait_timeout_s=1800.0, heartbeat_timeout_s=1e9)
    job.start()
    job.kill("w1")
    job.enter("w0", step=5)
    job.wait(1800.0)
    assert job.end is None
    job.wait(1.0)
    assert job.end is not None
    assert not job.end.succeeded
    assert "--min_workers" in job.end.reason
    assert "--max_restarts" in job.end.reason
    assert len(job.told_to_leave("w0")) == 1


def test_a_job_that_has_its_workers_again_does_not_fail_for_having_waited() -> None:
    job = Job(2, min_workers=2, wait_timeout_s=100.0, heartbeat_timeout_s=1e9)
    job.start()
    job.kill("w1")
    job.enter("w0", step=5)
    job.wait(99.0)
    job.ready("w2")
    assert job.members == ["w0", "w2"]
    job.wait(2.0)  # they initialise and sync
    assert job.end is None


def test_failures_are_replaced_until_the_restarts_are_used_up() -> None:
    job = Job(1, max_restarts=2)
    for number in range(3):
        job.start()
        assert job.members == [f"w{number}"]
        job.kill(f"w{number}")
    assert job.launches == ["w0", "w1", "w2"]
    assert job.end is not None
    assert not job.end.succeeded
    assert job.end.reason.startswith("no worker is left and all 2 restarts are used up")
    assert "w2 was killed by SIGKILL" in job.end.reason
    assert "--max_restarts" in job.end.reason


def test_the_others_go_on_when_the_restarts_are_used_up() -> None:
    job = Job(2, max_restarts=0)
    job.start()
    job.kill("w1")
    job.enter("w0", step=1)
    job.running("w0", step=1)
    assert job.round_number == 2
    assert job.end is None


def test_three_failures_in_a_row_before_any_worker_was_ready_end_the_job() -> None:
    job = Job(1)
    for number in range(3):
        assert job.end is None
        job.send(act.Exited(f"w{number}", "failed with exit code 1", failed=True))
    delays = [a.delay_s for a in job.of(act.Launch)]
    assert delays == [0.0, 1.0, 2.0]
    assert job.end is not None
    assert not job.end.succeeded
    assert "w2 failed with exit code 1 before it was ready" in job.end.reason
    assert "so did the 2 before it" in job.end.reason
    assert job.state.last_failed_worker == "w2"


def test_a_worker_that_becomes_ready_resets_the_count_of_start_failures() -> None:
    job = Job(1)
    for number in range(8):
        job.kill(f"w{number}")
        if number % 2:
            job.ready(f"w{number + 1}")
            job.kill(f"w{number + 1}")
            break
    assert job.end is None
    assert job.of(act.Launch)[-1].delay_s == 0.0


def test_a_member_that_fails_is_replaced_without_delay(three: Job) -> None:
    three.kill("w1")
    assert three.of(act.Launch)[-1] == act.Launch("w3", 0.0)
    assert three.said[-1] == ("w1 was killed by SIGKILL; starting a replacement (restart 1 of 10)")


# --- time limits -------------------------------------------------------------------------


def test_a_silent_member_is_evicted_and_replaced(three: Job) -> None:
    three.now += 10.0
    three.heartbeat("w0", "w2", step=10)
    three.wait(6.0)
    assert three.killed == ["w1"]
    assert three.state.broken_through == 1
    assert three.events("worker_exited")[-1]["cause"] == "evicted: no heartbeat for 16 s"
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
    assert "did not enter round 2 within 60 s" in three.events("worker_exited")[-1]["cause"]
    assert three.members == ["w0"]


def test_an_assigned_member_that_does_not_confirm_is_evicted() -> None:
    job = Job(2, heartbeat_timeout_s=1e9)
    job.ready("w0", "w1")
    job.running("w0")
    job.wait(61.0)
    assert job.killed == ["w1"]
    assert job.state.broken_through == 1
    job.enter("w0")
    assert job.members == ["w0"]


def test_a_spare_is_never_evicted_for_not_being_called() -> None:
    job = Job(3, micro_batches=2, heartbeat_timeout_s=1e9)
    job.start()
    job.wait(1e4)
    assert job.killed == []


# --- spares and capacity -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_workers", "max_workers", "micro_batches", "size"),
    [(4, 8, 8, 4), (4, 8, 2, 2), (4, 4, 8, 4), (3, 3, 1, 1)],
)
def test_a_round_has_no_more_members_than_micro_batches_or_max_workers(
    num_workers: int, max_workers: int, micro_batches: int, size: int
) -> None:
    job = Job(num_workers, micro_batches, max_workers=max_workers)
    job.start()
    assert len(job.members) == size
    spares = [w for w in job.workers if job.worker(w).phase is WorkerPhase.READY]
    assert len(spares) == num_workers - size


def test_where_the_batch_grows_micro_batches_limit_nothing_and_each_has_all_of_its_own() -> None:
    job = Job(4, micro_batches=2, max_workers=4)
    job.batch_grows = True
    job.start()
    job.send(act.AddWorkers(1))
    job.ready("w4")
    assert job.events("round_running")[-1]["micro_batches"] == [2, 2, 2, 2]
    assert any("start, 2+2+2+2 micro-batches" in line for line in job.said)
    told = [line for line in job.said if "spare" in line]
    assert told == ["w4 waits as a spare: 4 workers train already (--max_workers)"]


def test_a_spare_takes_over_after_a_death() -> None:
    job = Job(3, micro_batches=2)
    job.start()
    assert job.members == ["w0", "w1"]
    job.kill("w1")
    job.enter("w0", step=7)
    job.running("w0", "w2", step=7)
    assert job.round_number == 2
    assert job.members == ["w0", "w2"]


def test_by_default_a_worker_beyond_the_micro_batches_may_be_added_as_a_spare() -> None:
    job = Job(8, micro_batches=8)
    job.start()
    plan = plan_change(job.config, job.state, protocol.ChangeRequest(add=1))
    assert isinstance(plan, Change), plan
    job.send(plan.events[0])
    job.ready("w8")
    assert len(job.members) == 8
    assert job.said[-1].startswith("w8 waits as a spare: a batch is cut into 8 micro-batches; ")


def test_a_spare_in_a_full_world_causes_no_round() -> None:
    job = Job(2, micro_batches=2)
    job.start()
    job.send(act.AddWorkers(1))
    job.ready("w2")
    job.wait(10.0)
    assert job.state.pending_through == 0
    assert job.state.forming is None


@pytest.mark.parametrize(
    ("micro_batches", "max_workers", "reason"),
    [
        (2, 8, "a batch is cut into 2 micro-batches; a smaller micro_batch_size"),
        (8, 2, "2 workers train already (--max_workers)"),
    ],
)
def test_people_are_told_once_why_a_worker_has_nothing_to_do(
    micro_batches: int, max_workers: int, reason: str
) -> None:
    job = Job(2, micro_batches, max_workers=max_workers)
    job.start()
    job.send(act.AddWorkers(1))
    job.ready("w2")
    for _ in range(3):
        job.wait(10.0)
    told = [line for line in job.said if "spare" in line]
    assert len(told) == 1
    assert told[0].startswith(f"w2 waits as a spare: {reason}")


# --- the end -----------------------------------------------------------------------------


def test_the_job_ends_when_all_are_done_and_gone(three: Job) -> None:
    three.done("w0", "w1", step=30)
    three.exit("w0")
    assert three.end is None
    three.done("w2", step=30)
    assert three.end is None, "the scripts go on"
    three.exit("w1", "w2")
    assert three.end == act.EndJob(True, "finished")
    assert three.state.newest_step == 30
    assert act.CloseRendezvous(1) in three.actions


def test_a_member_killed_after_others_were_done_is_not_replaced(three: Job) -> None:
    three.done("w0", step=30)
    three.kill("w1")
    assert three.launches == ["w0", "w1", "w2"]
    assert three.state.broken_through == 1
    three.exit("w0")
    three.enter("w2", step=30, failure="a collective failed")
    assert three.members == ["w2"]
    three.running("w2", step=30)
    three.done("w2", step=30)
    three.exit("w2")
    assert three.end == act.EndJob(True, "finished")


def test_min_workers_does_not_hold_back_the_last_ones() -> None:
    job = Job(3, min_workers=3)
    job.start()
    job.done("w0", step=30)
    job.kill("w1")
    job.enter("w2", step=30)
    assert job.members == ["w2"]


def test_the_job_succeeds_when_the_last_members_die_after_one_was_done() -> None:
    job = Job(2)
    job.start()
    job.done("w0", step=30)
    job.exit("w0")
    job.kill("w1")
    assert job.end == act.EndJob(True, "finished")


def test_spares_and_starting_workers_do_not_hold_back_the_end() -> None:
    job = Job(3, micro_batches=2)
    job.start()
    job.send(act.AddWorkers(1))
    job.done("w0", "w1", step=30)
    assert job.told_over("w2") == 1
    job.exit("w0", "w1", "w2")
    assert job.end == act.EndJob(True, "finished")


def test_a_joiner_that_was_called_while_the_members_finish_does_not_hold_back_the_end(
    three: Job,
) -> None:
    """The members are past their last step, so that they do not come to the entrance."""
    three.send(act.AddWorkers(1))
    three.ready("w3")
    assert three.state.pending_through == 1
    three.done("w0", "w1", "w2", step=30)
    assert three.told_over("w3") == 1
    three.exit("w0", "w1", "w2", "w3")
    assert three.end == act.EndJob(True, "finished")


def test_a_member_that_is_done_is_not_awaited_at_the_entrance(three: Job) -> None:
    three.send(act.AddWorkers(1))
    three.ready("w3")
    three.done("w0", step=30)
    three.exit("w0")
    three.kill("w1")
    three.enter("w2", step=30, failure="a collective failed")
    assert "w0" not in three.members
    assert three.members[0] == "w2"


def test_a_member_that_ends_before_another_one_has_confirmed_does_no_harm() -> None:
    """A job that is started again after its last step has rounds of milliseconds."""
    job = Job(2)
    job.ready("w0", "w1")
    job.running("w0", step=30)
    job.done("w0", step=30)
    job.exit("w0")
    job.running("w1", step=30)
    job.done("w1", step=30)
    job.exit("w1")
    assert job.end == act.EndJob(True, "finished")


def test_a_member_killed_before_the_round_runs_leaves_out_those_that_are_done() -> None:
    job = Job(3)
    job.ready("w0", "w1", "w2")
    job.running("w0", step=30)
    job.done("w0", step=30)
    job.kill("w1")
    job.exit("w0")
    job.enter("w2", step=30)
    assert job.members == ["w2"]


def test_stopping_the_job_ends_it_when_all_have_left(three: Job) -> None:
    three.send(act.StopJob("interrupted"))
    assert three.state.pending_through == 1
    assert update_for(three.state, "w0").stop == "interrupted"
    three.enter("w0", "w1", "w2", step=11)
    assert three.told_to_leave("w2") == ["interrupted"]
    three.exit("w0", "w1")
    assert three.end is None
    three.exit("w2")
    assert three.end == act.EndJob(True, "interrupted")
    assert three.launches == ["w0", "w1", "w2"]


def test_a_member_killed_while_the_job_stops_frees_the_others(three: Job) -> None:
    three.send(act.StopJob("interrupted"))
    three.kill("w1")
    assert three.state.broken_through == 1
    three.enter("w0", "w2", step=10)
    three.exit("w0", "w2")
    assert three.end == act.EndJob(True, "interrupted")
    assert three.launches == ["w0", "w1", "w2"]


def test_stopping_the_job_releases_those_who_wait() -> None:
    job = Job(3, micro_batches=2)
    job.start()
    job.send(act.StopJob("interrupted"))
    assert job.told_to_leave("w2") == ["interrupted"]


def test_a_worker_that_comes_after_the_end_is_told_to_leave() -> None:
    """Otherwise it is held at the entrance until the grace time is over, and killed."""
    job = Job(2)
    job.start()
    job.send(act.AddWorkers(1))
    for number in (2, 3, 4):
        job.send(act.Exited(f"w{number}", "failed with exit code 1", failed=True))
    assert job.end is not None
    job.enter("w0", step=10)
    assert job.told_to_leave("w0") == [job.end.reason]


def test_nothing_is_started_after_the_end() -> None:
    job = Job(1)
    job.start()
    job.done("w0")
    job.exit("w0")
    assert job.end is not None
    for event in (act.Tick(), act.Exited("w0", "x", failed=True), act.AddWorkers(1)):
        job.send(event)
    assert job.launches == ["w0"]
    assert job.end == act.EndJob(True, "finished")


# --- what workers hear -------------------------------------------------------------------


def test_a_heartbeat_is_no_news_for_anybody(three: Job) -> None:
    """Every version wakes the long poll of every worker."""
    before = three.state.version
    three.now += 1.0
    three.heartbeat("w0", step=10)
    assert three.state.version == before


def test_a_change_of_the_round_is_news(three: Job) -> None:
    versions = [three.state.version]
    for act_on in (
        lambda: three.sigterm("w1"),
        lambda: three.kill("w2"),
        lambda: three.send(act.StopJob("interrupted")),
    ):
        act_on()
        versions.append(three.state.version)
    assert versions == sorted(set(versions))


@pytest.mark.parametrize(
    "event",
    [
        protocol.Heartbeat(worker_id="w9", training=1, round=1, step=99, progress=99, phase="x"),
        protocol.Joined(worker_id="w9", training=1, pid=1, num_micro_batches=1, warm_up_s=0.0),
        protocol.Running(worker_id="w9", round=1, step=99),
        protocol.Leaving(worker_id="w9", reason="SIGTERM"),
        protocol.Done(worker_id="w9", training=1, step=99),
        act.Exited("w9", "x", failed=True),
        act.RemoveWorker("w9"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_message_of_an_unknown_worker_changes_nothing(three: Job, event: act.Event) -> None:
    before = three.state
    assert three.send(event) == []
    assert three.state == before
