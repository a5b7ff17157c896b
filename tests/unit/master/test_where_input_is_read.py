"""Input that can only be read from the front: newcomers are told how far the others have read."""

from __future__ import annotations

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.machine.state import input_reply
from tests.unit.master.membership_driver import Job


def reads(job: Job, worker_id: str, step: int) -> protocol.InputPosition:
    """Sends a heartbeat of a worker that reads its input in training 1; returns its position."""
    position = protocol.InputPosition(training=1, progress=step, phase="train", epoch=0, step=step)
    job.send(
        protocol.Heartbeat(
            worker_id=worker_id,
            training=1,
            round=1,
            step=step,
            progress=step,
            phase="training",
            reading=position,
        )
    )
    return position


def test_newcomers_are_told_where_the_one_reads_who_is_furthest(three: Job) -> None:
    assert input_reply(three.state).position is None
    furthest = reads(three, "w1", step=14)
    reads(three, "w0", step=13)
    three.kill("w1")
    assert input_reply(three.state).position == furthest


def test_nobody_reads_where_all_are_lost(three: Job) -> None:
    reads(three, "w0", step=14)
    three.kill("w0", "w1", "w2")
    three.ready("w3")
    assert input_reply(three.state).position is None
    three.running("w3", step=10)
    assert input_reply(three.state).position is None
    position = reads(three, "w3", step=11)
    assert input_reply(three.state).position == position


def test_where_an_earlier_training_was_read_is_forgotten(three: Job) -> None:
    reads(three, "w0", step=14)
    three.done("w0", "w1", "w2", step=20)
    three.joined("w0")
    assert three.state.training.number == 2
    reads(three, "w1", step=14)
    assert input_reply(three.state).position is None


def test_a_worker_is_told_how_many_stay(three: Job) -> None:
    assert input_reply(three.state).workers == 3
    three.send(protocol.Leaving(worker_id="w1", reason="asked to"))
    assert input_reply(three.state).workers == 2
    three.kill("w1", "w2")  # another one starts in the place of w2
    assert input_reply(three.state).workers == 2
