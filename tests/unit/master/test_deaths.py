"""A member dies or fails: which round breaks, and which workers are in the next one."""

from __future__ import annotations

from msgspec.structs import replace

from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.state import update_for
from tests.unit.master.membership_driver import Job

# --- while a round runs ------------------------------------------------------------------


def test_a_killed_member_breaks_its_round_and_the_survivors_get_the_next_one(three: Job) -> None:
    three.kill("w1")
    assert three.broken_through == 1
    assert act.CloseRendezvous(1) in three.actions
    three.enter("w0", "w2", step=10)
    assert three.members == ["w0", "w2"]
    three.running("w0", "w2", step=10)
    assert three.round_number == 2
    assert three.last("worker_exited")["cause"] == "was killed by SIGKILL"
    assert three.last("worker_exited")["failed"] is True
    assert three.launches[-1] == "w3", "a replacement is started"


def test_two_members_killed_at_once_make_one_new_round(three: Job) -> None:
    three.kill("w1", "w2")
    three.resume("w0", step=10)
    assert three.round_number == 2
    assert three.members == ["w0"]
    reason = three.last("round_running")["reason"]
    assert "w1 was killed" in reason
    assert "w2 was killed" in reason
    assert three.state.restarts.used == 2


def test_a_member_that_exits_0_before_the_end_counts_as_failed(three: Job) -> None:
    three.exit("w1")
    assert three.broken_through == 1
    assert three.last("worker_exited")["failed"] is True
    assert three.launches[-1] == "w3"


def test_the_second_report_of_a_death_changes_nothing(three: Job) -> None:
    three.kill("w1")
    before = three.state
    three.kill("w1")
    assert replace(three.state, spent=before.spent) == before


def test_a_worker_that_was_given_up_is_told_to_leave(three: Job) -> None:
    three.kill("w1")
    three.enter("w1", step=10)
    assert three.told_to_leave("w1") == ["this worker is no longer part of the job"]
    assert update_for(three.state, "w1").leave == "this worker is no longer part of the job"


# --- while a round is put together -------------------------------------------------------


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
    three.add_ready("w3")
    three.enter("w0", step=11)
    three.kill("w1")
    assert three.broken_through == 1, "w2 may hang in a collective with w1"
    three.enter("w2", step=10)
    assert three.members == ["w0", "w2", "w3"]


def test_a_member_killed_after_the_assignment_breaks_the_new_round(three: Job) -> None:
    three.kill("w2")
    three.enter("w0", "w1", step=10)
    assert three.places["w0"].round == 2
    three.running("w0", step=10)
    three.kill("w1")
    assert three.broken_through == 2
    assert act.CloseRendezvous(2) in three.actions
    three.resume("w0", step=10)
    assert three.round_number == 3
    assert three.members == ["w0"]


def test_a_confirmation_of_a_broken_round_is_ignored(three: Job) -> None:
    three.kill("w2")
    three.enter("w0", "w1", step=10)
    three.kill("w1")
    three.running("w0", step=10)
    assert three.state.rounds.running is None


# --- a survivor knows of it before the master --------------------------------------------


def test_a_survivor_that_comes_before_the_master_hears_of_the_death_breaks_the_round(
    three: Job,
) -> None:
    three.lose_contact("w0", step=10)
    assert three.broken_through == 1
    three.lose_contact("w1", step=10)
    assert three.members != ["w0", "w1"], "w2 is not known to be dead"
    three.kill("w2")
    assert three.members == ["w0", "w1"]


def test_who_was_killed_is_told_in_place_of_the_contact_that_the_survivors_lost_by_it(
    three: Job,
) -> None:
    three.lose_contact("w0", step=10)
    three.enter("w1", step=10)
    three.kill("w2")
    three.running("w0", "w1", step=10)
    assert three.last("round_running")["reason"] == "w2 was killed by SIGKILL"


def test_contact_lost_for_no_known_reason_is_told(three: Job) -> None:
    three.lose_contact("w0", step=10)
    three.resume("w0", "w1", "w2", step=10)
    assert three.last("round_running")["reason"] == "w0 lost contact"


def test_a_survivor_whose_new_round_failed_breaks_that_round(three: Job) -> None:
    three.kill("w2")
    three.enter("w0", "w1", step=10)
    three.enter("w0", step=10, failure="Horovod could not be initialised")
    assert three.broken_through == 2
    three.enter("w1", step=10)
    assert three.places["w1"].round == 3


def test_a_failure_reported_during_a_planned_change_breaks_the_old_round(three: Job) -> None:
    """Otherwise the others hang in the dead member's collective until a time limit."""
    three.add_ready("w3")
    assert three.pending_through == 1
    three.lose_contact("w0", step=10)
    assert three.broken_through == 1
    assert act.CloseRendezvous(1) in three.actions
