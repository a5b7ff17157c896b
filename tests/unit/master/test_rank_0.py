"""Which survivor becomes rank 0; the others take over its state."""

from __future__ import annotations

from tests.unit.master.membership_driver import Job


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
    three.resume("w1", "w2", "w3", step=10)
    assert [three.worker(w).seniority for w in ("w1", "w2", "w3")] == [1, 2, 3]
    three.kill("w1")
    three.enter("w3", "w2", step=20)
    assert three.members == ["w2", "w3"]
