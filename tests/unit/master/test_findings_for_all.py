"""What the first worker has found about a model is told to all that come after it."""

from __future__ import annotations

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.machine.state import input_reply
from tests.unit.master.membership_driver import Job


def found(job: Job, worker_id: str, findings: str, training: int = 1) -> None:
    job.send(protocol.Found(worker_id=worker_id, training=training, findings=findings))


def known(job: Job) -> str:
    told = input_reply(job.state).found
    return told.findings if told else ""


def test_the_first_word_counts_before_anybody_has_a_state() -> None:
    job = Job(2)
    assert not known(job)
    found(job, "w1", "sums")
    found(job, "w0", "means")
    assert known(job) == "sums"


def test_it_counts_while_somebody_is_there_who_goes_by_it(three: Job) -> None:
    for worker_id in ("w0", "w1", "w2"):
        found(three, worker_id, "sums")
    three.kill("w0", "w1")
    assert known(three) == "sums"
    three.restart()
    assert known(three) == "sums"
    three.kill("w2")
    assert not known(three), "whoever starts now may have another model"


def test_it_counts_for_those_who_are_not_warm_yet_when_the_first_is_lost() -> None:
    job = Job(2)
    found(job, "w0", "sums")
    found(job, "w1", "sums")
    job.kill("w0")
    found(job, "w2", "means")
    assert known(job) == "sums"


def test_each_training_has_its_own(three: Job) -> None:
    found(three, "w0", "sums")
    three.done("w0", "w1", "w2", step=20)
    found(three, "w1", "means", training=2)
    found(three, "w2", "sums", training=1)
    found(three, "w2", "sums", training=2)
    assert known(three) == "means"
