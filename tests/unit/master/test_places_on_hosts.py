"""Each worker keeps its place on its host as long as it exists; its replacement takes the place."""

from __future__ import annotations

from hvd_elastic_keras.master.machine import actions as act
from tests.unit.master.membership_driver import Job, running_job


def places(job: Job) -> dict[str, int]:
    return {worker_id: job.worker(worker_id).slot for worker_id in job.workers}


def test_a_replacement_takes_the_place_of_the_lost_one() -> None:
    job = running_job(3)
    assert places(job) == {"w0": 0, "w1": 1, "w2": 2}
    job.kill("w1")
    assert places(job) == {"w0": 0, "w2": 2, "w3": 1}


def test_who_is_still_leaving_holds_its_place() -> None:
    job = running_job(2)
    job.remove("w0")
    job.add("w2")
    assert places(job) == {"w0": 0, "w1": 1, "w2": 2}
    job.exit("w0")
    job.add("w3")
    assert places(job) == {"w1": 1, "w2": 2, "w3": 0}


def test_each_host_counts_for_itself_also_for_workers_that_come_by_themselves() -> None:
    job = running_job(2)
    job.send(act.Registered("w2", "b"))
    job.send(act.Registered("w3", "b"))
    assert places(job) == {"w0": 0, "w1": 1, "w2": 0, "w3": 1}
    job.kill("w2")
    job.send(act.Registered("w4", "b"))
    assert places(job) == {"w0": 0, "w1": 1, "w3": 1, "w4": 0}


def test_the_next_master_knows_the_places() -> None:
    job = running_job(3)
    job.kill("w0")
    before = places(job)
    job.restart()
    assert places(job) == before == {"w1": 1, "w2": 2, "w3": 0}
