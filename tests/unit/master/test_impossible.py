"""What workers cannot have done, and what they may have done while no master listened."""

from __future__ import annotations

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.master.worker_handler import MOST_STEPS_AHEAD, impossible_in
from tests.unit.master.membership_driver import Job, running_job

FAR = 5 * MOST_STEPS_AHEAD


def heartbeat(step: int, training: int = 1) -> protocol.Heartbeat:
    return protocol.Heartbeat(
        worker_id="w0", training=training, round=1, step=step, progress=step, phase="train"
    )


def entry(step: int) -> protocol.EnterRequest:
    return protocol.EnterRequest(
        worker_id="w0", training=1, from_round=1, has_state=True, progress=step, step=step
    )


def test_a_step_far_ahead_of_the_newest_is_impossible(three: Job) -> None:
    three.send(heartbeat(100))
    assert impossible_in(three.state, heartbeat(100 + MOST_STEPS_AHEAD)) == ""
    told = "The message names step 10000101, but this job is only at step 100."
    assert impossible_in(three.state, heartbeat(101 + MOST_STEPS_AHEAD)) == told
    assert impossible_in(three.state, entry(101 + MOST_STEPS_AHEAD)) == told
    record = events.EpochEnd(epoch=1, step=101 + MOST_STEPS_AHEAD, metrics={})
    wrong = protocol.Record(worker_id="w0", training=1, entry=record)
    assert impossible_in(three.state, wrong) == told


def test_a_training_may_begin_at_any_step() -> None:
    job = Job(3)
    job.ready("w0", "w1", "w2")
    assert impossible_in(job.state, entry(FAR)) == ""
    going_on = protocol.Running(worker_id="w0", round=1, step=FAR)
    assert impossible_in(job.state, going_on) == ""


def test_workers_may_have_come_far_while_there_was_no_master(three: Job) -> None:
    three.send(heartbeat(100))
    three.restart()
    assert impossible_in(three.state, heartbeat(FAR)) == ""
    assert impossible_in(three.state, entry(FAR)) == ""
    three.send(heartbeat(FAR))
    assert impossible_in(three.state, entry(FAR + 100)) == ""
    assert "step" in impossible_in(three.state, heartbeat(3 * FAR))


def test_the_same_holds_if_it_has_died_during_a_change(three: Job) -> None:
    three.send(heartbeat(100))
    three.kill("w1")
    three.restart()
    three.send(heartbeat(FAR))
    assert impossible_in(three.state, entry(FAR)) == ""


def test_a_place_in_the_input_far_ahead_is_impossible(three: Job) -> None:
    def reading(progress: int) -> protocol.Heartbeat:
        position = protocol.InputPosition(
            training=1, progress=progress, phase="train", epoch=0, step=0
        )
        return protocol.Heartbeat(
            worker_id="w0", training=1, round=1, step=1, progress=1, phase="", reading=position
        )

    assert impossible_in(three.state, reading(FAR)) == "", "none is known"
    three.send(reading(7))
    assert impossible_in(three.state, reading(8)) == ""
    assert "progress" in impossible_in(three.state, reading(FAR))


def test_rounds_and_trainings_come_one_after_the_other() -> None:
    job = running_job(2)
    assert impossible_in(job.state, heartbeat(1, training=2)) == "", "Joined is on its way"
    assert "training 3" in impossible_in(job.state, heartbeat(1, training=3))
    ahead = protocol.Running(worker_id="w0", round=2, step=1)
    assert "round 2" in impossible_in(job.state, ahead)
