"""Each worker has its own machine, which others may take: a pod, for example."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from tests.unit.master.membership_driver import Job, running_job

PREEMPTED = "was preempted: a pod of higher priority needs its place"


def job_of(num_workers: int) -> Job:
    return running_job(num_workers, own_machines=True)


def taken(job: Job, worker_id: str) -> None:
    job.send(WorkerExit(worker_id, None, PREEMPTED, taken=True))


def said(job: Job) -> str:
    return "\n".join(say.text for say in job.of(act.Say))


def test_a_taken_worker_is_replaced_and_no_restart_is_counted() -> None:
    job = job_of(3)
    taken(job, "w1")
    assert job.launches[-1] == "w3"
    assert job.state.restarts.used == 0
    assert f"w1 {PREEMPTED}" in said(job)
    exited = [e.entry for e in job.of(act.Emit) if isinstance(e.entry, events.WorkerExited)]
    assert [(e.cause, e.failed) for e in exited] == [(PREEMPTED, False)]


def test_a_taken_worker_breaks_its_round_and_the_others_go_on() -> None:
    job = job_of(3)
    taken(job, "w1")
    assert job.broken_through == 1
    job.resume("w0", "w2", step=5)
    assert job.members == ["w0", "w2"]


def test_without_any_restart_left_a_taken_worker_is_replaced_all_the_same() -> None:
    job = running_job(2, own_machines=True, max_restarts=0)
    taken(job, "w1")
    assert job.launches[-1] == "w2"


def test_who_is_taken_before_it_was_warm_is_replaced_after_a_pause() -> None:
    job = Job(2, own_machines=True)
    taken(job, "w1")
    assert job.of(act.Launch)[-1] == act.Launch("w2", "localhost", 5.0)


def test_nobody_is_replaced_when_the_training_is_finished() -> None:
    job = job_of(3)
    job.done("w0")
    taken(job, "w1")
    job.send(protocol.Leaving(worker_id="w2", reason="SIGTERM"))
    assert job.launches == ["w0", "w1", "w2"]


def test_the_slot_of_a_worker_that_is_asked_to_leave_stays() -> None:
    job = job_of(2)
    job.send(protocol.Leaving(worker_id="w1", reason="SIGTERM"))
    assert job.launches[-1] == "w2"
    assert job.state.target_workers == 2
    taken(job, "w1")
    assert job.launches == ["w0", "w1", "w2"], "one for one"


def test_the_slot_of_a_worker_that_came_by_itself_goes_with_it() -> None:
    job = job_of(2)
    job.send(act.Registered("w2", "elsewhere"))
    job.ready("w2")
    job.send(protocol.Leaving(worker_id="w2", reason="SIGTERM"))
    assert job.launches == ["w0", "w1"]
    assert job.state.target_workers == 2


def test_a_revoked_slot_does_not_come_back_when_its_worker_is_gone() -> None:
    job = job_of(2)
    job.send(act.RevokeSlots(("w1",), {}, deadline_s=None))
    taken(job, "w1")
    assert job.launches == ["w0", "w1"]


def test_a_silent_worker_whose_machine_was_lost_is_forgiven() -> None:
    job = running_job(2, own_machines=True, heartbeat_timeout_s=15.0)
    job.later(10.0)
    job.heartbeat("w0")
    job.wait(6.0)
    assert job.state.restarts.used == 1
    taken(job, "w1")
    assert job.state.restarts.used == 0
    assert job.launches == ["w0", "w1", "w2"]


def test_workers_that_are_taken_while_they_start_do_not_end_the_job() -> None:
    job = Job(1, own_machines=True)
    for worker_id in ("w0", "w1", "w2", "w3"):
        job.send(WorkerExit(worker_id, -15))  # its joiner has reported this
        taken(job, worker_id)
    assert job.workers == ["w4"]
    assert job.state.restarts.used == 0


def test_a_worker_that_has_to_leave_while_it_starts_is_ended_and_replaced() -> None:
    job = Job(1, own_machines=True)
    job.send(act.Started("w0", "localhost", 0))
    job.send(protocol.Leaving(worker_id="w0", reason="somebody has deleted its pod"))
    assert job.of(act.Kill) == [act.Kill("w0")]
    job.send(WorkerExit("w0", -15))
    assert job.workers == ["w1"]
    assert job.state.restarts.used == 0


def test_a_worker_that_fails_is_not_forgiven_for_the_loss_of_another_one() -> None:
    job = job_of(3)
    job.kill("w1")
    taken(job, "w2")
    assert job.state.restarts.used == 1


def test_others_of_the_same_host_are_not_lost_with_a_silent_one() -> None:
    job = running_job(1, own_machines=True, heartbeat_timeout_s=15.0)
    job.send(act.GrantSlots("pods", 3))
    job.ready("w1", "w2", "w3")
    job.later(10.0)
    job.heartbeat("w0", "w2", "w3")
    job.wait(6.0)
    assert "w1" not in job.workers
    assert {"w2", "w3"} <= set(job.workers)


def test_each_worker_is_alone_on_its_machine() -> None:
    places = job_of(3).places
    assert [(p.local_rank, p.local_size) for p in places.values()] == [(0, 1)] * 3
    assert [(p.cross_rank, p.cross_size) for p in places.values()] == [(0, 3), (1, 3), (2, 3)]


# --- those that cannot start -------------------------------------------------------------


def test_a_worker_without_a_machine_delays_nobody() -> None:
    job = Job(3, own_machines=True)
    job.send(act.Pending("w2", "no node has a free GPU"))
    job.ready("w0", "w1")
    assert job.members == ["w0", "w1"]


def test_a_worker_against_which_nothing_is_known_is_awaited() -> None:
    job = Job(3, own_machines=True)
    job.send(act.Pending("w2", ""))
    job.ready("w0", "w1")
    assert job.state.rounds.forming is None


def test_people_hear_of_each_reason_once_and_of_its_end() -> None:
    job = Job(1, own_machines=True)
    for reason in ("", "no room", "no room", "no image", None):
        job.send(act.Pending("w0", reason))
    entries = [e.entry for e in job.of(act.Emit) if isinstance(e.entry, events.WorkerPending)]
    assert [e.reason for e in entries] == ["no room", "no image", ""]
    assert said(job) == "w0 waits: no room\nw0 waits: no image\nw0 has a place now"


@pytest.mark.parametrize("reason", ["", "no room"])
def test_no_time_runs_out_before_the_machine_is_there(reason: str) -> None:
    job = running_job(1, own_machines=True, heartbeat_timeout_s=1e9)
    job.send(act.GrantSlots("pods", 1))
    job.send(act.Pending("w1", reason))
    job.wait(1e6)
    assert job.workers == ["w0", "w1"]
    job.send(act.Pending("w1", None))
    job.wait(55.0)
    assert job.workers == ["w0", "w1"]
    job.wait(6.0)
    assert "w1" not in job.workers, "it runs, and says nothing (--enter_timeout_s)"


def test_who_has_its_machine_must_become_ready_in_time() -> None:
    job = Job(1, own_machines=True)
    job.send(act.Pending("w0", ""))
    job.wait(1e6)
    job.send(act.Pending("w0", None))
    job.wait(7000.0)
    assert job.workers == ["w0"]
    job.wait(300.0)
    assert "w0" not in job.workers, "--start_up_timeout_s"
