"""Workers fail again and again on the same one of several hosts."""

from __future__ import annotations

from msgspec.structs import replace

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.decide import decide
from hvd_elastic_keras.master.machine.phases import Running
from hvd_elastic_keras.master.machine.state import Rounds, State, Training, Worker, WorkerPhase
from hvd_elastic_keras.settings.job_config import JobConfig

CONFIG = JobConfig(num_workers=4)


class Job:
    """Workers that train: w0 and w1 on host a, `on_b` more on host b."""

    def __init__(self, on_b: int = 1, room_on_a: int = 0) -> None:
        self.now = 100.0
        self.actions: list[act.Action] = []
        hosts = ["a", "a", *["b"] * on_b]
        workers = [_member(Worker(f"w{n}", 0.0, host=host)) for n, host in enumerate(hosts)]
        ids = tuple(w.worker_id for w in workers)
        self.state = State(
            workers={w.worker_id: w for w in workers},
            next_worker_number=len(workers),
            slots={"a": 2 + room_on_a, "b": on_b},
            training=Training(1, num_micro_batches=8),
            rounds=Rounds(Running(1, ids, 0.0), last_number=1, last_members=ids),
        )

    def send(self, event: act.Event) -> None:
        self.state, self.actions = decide(CONFIG, self.state, event, self.now)

    def kill(self, worker_id: str, after_s: float = 20.0) -> act.Launch:
        """Kills a worker, and lets its replacement come; returns the replacement's launch."""
        self.now += after_s
        self.send(WorkerExit(worker_id, -9))
        (start,) = (a for a in self.actions if isinstance(a, act.Launch))
        come = _member(self.state.workers[start.worker_id])
        workers = {**self.state.workers, start.worker_id: come}
        self.state = replace(self.state, workers=workers)
        return start

    def kill_each(self, worker_id: str, times: int, after_s: float = 20.0) -> list[act.Launch]:
        """Kills the worker, then its replacement, and so on; returns the launches."""
        starts: list[act.Launch] = []
        for _ in range(times):
            starts.append(self.kill(worker_id, after_s))
            worker_id = starts[-1].worker_id
        return starts


def _member(worker: Worker) -> Worker:
    return replace(
        worker, phase=WorkerPhase.MEMBER, training=1, seniority=worker.number, last_heartbeat=100.0
    )


def test_a_host_rests_for_longer_each_time() -> None:
    job = Job()
    starts = job.kill_each("w2", times=5)
    assert [s.host for s in starts] == ["b"] * 5
    assert [s.delay_s for s in starts] == [0.0, 0.0, 10.0, 20.0, 40.0]
    (said,) = (a.text for a in job.actions if isinstance(a, act.Say))
    assert "starting a replacement in 40 s, as workers on b fail again and again (rest" in said
    assert job.kill("w0").delay_s == 0.0, "the other host works"


def test_old_failures_are_not_held_against_it() -> None:
    assert {s.delay_s for s in Job().kill_each("w2", times=5, after_s=600.0)} == {0.0}


def test_what_fails_together_counts_once() -> None:
    job = Job(on_b=4)
    starts = [job.kill(worker_id, after_s=1.0) for worker_id in ("w2", "w3", "w4", "w5")]
    assert {s.delay_s for s in starts} == {0.0}


def test_meanwhile_another_host_that_has_room_takes_the_replacement() -> None:
    starts = Job(room_on_a=1).kill_each("w2", times=3)
    assert [(s.host, s.delay_s) for s in starts] == [("b", 0.0), ("b", 0.0), ("a", 0.0)]


def test_the_only_host_of_a_job_never_rests() -> None:
    job = Job(on_b=0)
    job.state = replace(job.state, slots={"a": 2})
    assert {s.delay_s for s in job.kill_each("w1", times=5)} == {0.0}


def test_who_leaves_or_is_revoked_is_no_failure_of_its_host() -> None:
    job = Job(on_b=4)
    for worker_id in ("w2", "w3"):
        job.now += 20.0
        job.send(protocol.Leaving(worker_id=worker_id, reason="SIGTERM"))
        job.send(WorkerExit(worker_id, 0))
    job.send(act.RevokeSlots(("w4",), {}, 1.0))
    job.now += 20.0
    job.send(WorkerExit("w4", -9))
    assert job.kill("w5").delay_s == 0.0
