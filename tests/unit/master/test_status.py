"""The answer to `ctl status`."""

from __future__ import annotations

from hvd_elastic_keras.common import control, messages, protocol
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.status import job_status
from tests.unit.master.membership_driver import Job


def status_of(job: Job) -> control.JobStatus:
    return job_status(job.config, job.state, job.now)


def phases(job: Job) -> dict[str, str]:
    return {w.worker_id: w.phase for w in status_of(job).workers}


def test_the_phase_of_the_job_follows_its_life() -> None:
    job = Job(2, min_workers=2)
    seen = [status_of(job).phase]
    job.ready("w0", "w1")
    seen.append(status_of(job).phase)
    job.running("w0", "w1")
    seen.append(status_of(job).phase)
    job.kill("w1")
    seen.append(status_of(job).phase)
    job.enter("w0")
    job.ready("w2")
    job.running("w0", "w2")
    job.done("w0", step=9)
    seen.append(status_of(job).phase)
    job.send(act.StopJob("interrupted"))
    seen.append(status_of(job).phase)
    assert seen == ["starting", "changing", "running", "waiting", "finishing", "stopping"]
    assert status_of(job).detail == "interrupted"


def test_a_job_that_starts_tells_what_its_workers_do() -> None:
    job = Job(2, min_workers=2)
    assert status_of(job).detail == "imports, data, model"
    job.heartbeat("w0", phase=protocol.TRACING)
    assert status_of(job).detail == "w0: tracing the step; w1: imports, data, model"
    job.ready("w0")
    assert phases(job) == {"w0": "ready", "w1": "starting"}
    assert status_of(job).detail == "imports, data, model"


def test_workers_have_the_phase_that_they_report_and_ranks_of_the_running_round() -> None:
    job = Job(3, micro_batches=2)
    job.start(step=4)
    job.send(act.AddWorkers(1))
    job.heartbeat("w0", step=5, phase="evaluating")
    assert phases(job) == {"w0": "evaluating", "w1": "training", "w2": "spare", "w3": "starting"}
    assert [w.rank for w in status_of(job).workers] == [0, 1, None, None]
    job.sigterm("w1")
    assert phases(job)["w1"] == "leaving"


def test_the_numbers_are_those_of_the_job() -> None:
    job = Job(2, max_restarts=3)
    job.start(step=4)
    job.heartbeat("w0", "w1", step=7)
    job.now += 1.5
    job.kill("w1")
    status = status_of(job)
    assert (status.step, status.restarts_used, status.max_restarts) == (7, 1, 3)
    assert (status.target_workers, status.min_workers, status.max_workers) == (2, 1, 16)
    assert status.slots == (control.HostSlots(host="localhost", granted=2, used=2),)
    assert status.workers[0].heartbeat_age_s == 1.5
    assert status.workers[1].heartbeat_age_s is None
    assert messages.decode(messages.encode(status), control.JobStatus) == status


def test_a_revoked_slot_is_in_use_until_its_worker_is_gone() -> None:
    job = Job(2)
    job.start()
    job.send(act.RevokeSlots(("w1",), {}, None))
    assert status_of(job).slots == (control.HostSlots(host="localhost", granted=1, used=2),)
    job.exit("w1")
    assert status_of(job).slots == (control.HostSlots(host="localhost", granted=1, used=1),)


def test_workers_are_listed_in_the_order_of_their_numbers() -> None:
    job = Job(8)
    job.send(act.AddWorkers(4))
    assert [w.worker_id for w in status_of(job).workers] == [f"w{i}" for i in range(12)]
