"""A worker joins a job that trains: the round it gets, and the effects on the others."""

from __future__ import annotations

from hvd_elastic_keras.master.machine import actions as act
from tests.unit.master.membership_driver import Job


def test_a_joiner_changes_the_running_round_without_breaking_it(three: Job) -> None:
    three.add_ready("w3")
    assert three.round_number == 1, "the others train on"
    assert three.pending_through == 1
    three.resume("w0", "w1", "w2", "w3", step=12)
    assert three.round_number == 2
    assert three.members == ["w0", "w1", "w2", "w3"]
    assert three.broken_through == 0
    assert not three.of(act.CloseRendezvous)
    assert three.places["w3"].sync


def test_joiners_that_arrive_together_share_a_round(three: Job) -> None:
    three.add("w3", "w4")
    three.ready("w3")
    three.wait(1.0)
    assert three.state.rounds.forming is None, "w4 is awaited for join_window_s"
    three.ready("w4")
    three.enter("w0", "w1", "w2", step=12)
    assert three.members == ["w0", "w1", "w2", "w3", "w4"]
    assert three.places["w4"].round == 2


def test_a_joiner_does_not_wait_for_another_one_longer_than_the_join_window(three: Job) -> None:
    three.add("w3", "w4")
    three.ready("w3")
    three.wait(4.9)
    assert three.state.rounds.forming is None
    three.wait(0.2)
    assert three.pending_through == 1


def test_a_joiner_is_taken_into_a_round_that_is_already_forming(three: Job) -> None:
    three.add("w3")
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
    assert three.pending_through == 2
    three.enter("w0", "w1", step=11)
    assert three.members == ["w0", "w1", "w3"]


def test_a_joiner_that_dies_at_the_entrance_leaves_the_round_to_the_others(three: Job) -> None:
    three.add_ready("w3")
    three.kill("w3")
    three.enter("w0", "w1", "w2", step=11)
    assert three.members == ["w0", "w1", "w2"]
    assert three.broken_through == 0
