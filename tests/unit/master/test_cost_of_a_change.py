"""The cost of a change of membership: how long training stood still, and which steps are lost."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.master.machine import actions as act
from tests.unit.master.membership_driver import Job


def stall(job: Job) -> object:
    """Returns the seconds for which training stood still before the newest round ran."""
    return pytest.approx(job.last("round_running")["stall_s"])


def test_the_stall_lasts_from_the_death_to_the_next_running_round(three: Job) -> None:
    three.later(5.0)
    three.kill("w1")
    three.later(0.2)
    three.enter("w0", "w2", step=10)
    three.later(0.3)
    three.running("w0", "w2", step=10)
    assert stall(three) == 0.5
    assert "stalled 0.50 s" in three.said[-1]


def test_the_stall_of_a_planned_change_begins_when_the_first_member_stops(three: Job) -> None:
    three.add_ready("w3")
    three.later(4.0)
    three.enter("w0", step=11, idle_s=0.25)
    three.later(0.2)
    three.enter("w1", "w2", step=11)
    three.later(0.1)
    three.running("w0", "w1", "w2", "w3", step=11)
    assert stall(three) == 0.55


def test_a_joiner_that_asks_again_while_the_others_train_does_not_count_as_a_stall(
    three: Job,
) -> None:
    three.add_ready("w3")
    three.later(1.0)
    three.enter("w3", has_state=False)  # its long poll has ended
    three.later(4.0)
    three.resume("w0", "w1", "w2", "w3", step=11)
    assert stall(three) == 0.0


def test_the_stall_goes_on_over_a_second_break(three: Job) -> None:
    three.kill("w2")
    three.later(1.0)
    three.enter("w0", "w1", step=10)
    three.later(1.0)
    three.kill("w1")
    three.later(1.0)
    three.resume("w0", step=10)
    assert stall(three) == 3.0
    assert "3 → 1 worker (w0)" in three.said[-1]


def parts(job: Job) -> list[float]:
    """Returns the parts of the newest stall: until noticed, until all came, and until all ran."""
    entry = job.last("round_running")
    return [entry["noticed_s"], entry["entered_s"], entry["synced_s"]]


def test_the_stall_of_a_frozen_worker_begins_with_the_last_step_of_the_others(three: Job) -> None:
    three.later(100.0)
    three.heartbeat("w0", "w1", "w2", step=10)
    for _ in range(32):
        three.later(0.5)
        three.heartbeat("w0", "w2", step=10, in_collective=True)
    three.send(act.Tick())
    assert "w1" not in three.state.workers
    three.later(0.25)
    three.enter("w0", "w2", step=10, idle_s=16.5)
    three.later(0.5)
    three.running("w0", "w2", step=10)
    assert stall(three) == 17.0
    assert parts(three) == [16.25, 0.25, 0.5]
    assert "stalled 17.00 s" in three.said[-1]


def let_w1_fall_silent(three: Job) -> None:
    """Keeps w1 silent for 16 s, while the others stay at step 10. These continue without w1."""
    for _ in range(32):
        three.later(0.5)
        three.heartbeat("w0", "w2", step=10)
    three.send(act.Tick())
    three.resume("w0", "w2", step=10)


def test_the_stall_of_a_frozen_worker_is_known_also_if_nobody_tells_of_a_last_step(
    three: Job,
) -> None:
    three.later(100.0)
    three.heartbeat("w0", "w1", "w2", step=10)
    let_w1_fall_silent(three)
    assert stall(three) == 16.0


def test_a_worker_that_fell_silent_in_a_long_step_has_stalled_since_then(three: Job) -> None:
    three.heartbeat("w0", "w1", "w2", step=10)
    three.later(100.0)
    three.heartbeat("w0", "w1", "w2", step=10)
    let_w1_fall_silent(three)
    assert stall(three) == 16.0


def test_no_stall_begins_before_its_round_has_run(three: Job) -> None:
    three.later(2.0)
    three.kill("w1")
    three.enter("w0", "w2", step=10, idle_s=60.0)
    three.running("w0", "w2", step=10)
    assert stall(three) == 2.0


def test_a_newcomer_that_freezes_before_it_is_connected_is_part_of_the_stall(three: Job) -> None:
    three.add_ready("w3")
    three.enter("w0", "w1", "w2", step=10, idle_s=0.0)
    for _ in range(32):
        three.later(0.5)
        three.heartbeat("w0", "w1", "w2", step=10)
    three.send(act.Tick())
    assert "w3" not in three.state.workers
    three.resume("w0", "w1", "w2", step=10)
    assert stall(three) == 16.0
    assert parts(three) == [16.0, 0.0, 0.0]


@pytest.mark.parametrize(("resumed_at", "lost"), [(20, 0), (19, 1), (15, 5)])
def test_steps_lost_are_those_between_the_newest_heard_of_and_the_root(
    three: Job, resumed_at: int, lost: int
) -> None:
    three.heartbeat("w0", "w1", "w2", step=20)
    three.kill("w1")
    three.resume("w0", "w2", step=resumed_at)
    assert three.last("round_running")["steps_lost"] == lost
    assert three.state.training.newest_step == resumed_at
