"""The answer to `ctl status`. Pure."""

from __future__ import annotations

from hvd_elastic_keras import protocol
from hvd_elastic_keras.config import JobConfig
from hvd_elastic_keras.master.reasons import told
from hvd_elastic_keras.master.state import State, Worker, WorkerPhase, training_is_over


def job_status(config: JobConfig, state: State, now: float) -> protocol.JobStatus:
    """Phase of the job, its round and its workers."""
    phase, detail = _phase(state)
    members = state.running.members if state.running else ()
    if state.forming and state.forming.members:
        members = state.forming.members
    # Members take their steps together; their heartbeats only come at different moments.
    newest = max((state.workers[m].step for m in members if m in state.workers), default=0)
    rows = tuple(
        _row(worker, members.index(worker_id) if worker_id in members else None, newest, now)
        for worker_id, worker in sorted(state.workers.items(), key=lambda item: item[1].number)
    )
    return protocol.JobStatus(
        phase=phase,
        detail=detail,
        training=state.training,
        round=state.running.number if state.running else state.last_round,
        step=max([state.newest_step, *_steps(state)]),
        target_workers=state.target_workers,
        slots=_slots(state),
        min_workers=config.min_workers,
        max_workers=config.max_workers,
        restarts_used=state.restarts_used,
        max_restarts=config.max_restarts,
        workers=rows,
    )


def _slots(state: State) -> tuple[protocol.HostSlots, ...]:
    hosts = [worker.host for worker in state.workers.values()]
    return tuple(
        protocol.HostSlots(host=host, granted=granted, used=hosts.count(host))
        for host, granted in state.slots.items()
    )


def _steps(state: State) -> list[int]:
    return [w.step for w in state.workers.values() if w.training == state.training]


def _phase(state: State) -> tuple[str, str]:
    if state.stop:
        return "stopping", state.stop
    if training_is_over(state, state.workers):
        return "done", f"training {state.training} is finished, the script goes on"
    if state.finishing:
        return "finishing", ""
    if state.waiting_since is not None:
        return "waiting", "too few workers"
    if state.forming:
        return "changing", told(state.forming.reasons)
    return ("running", "") if state.running else ("starting", "")


def _row(worker: Worker, rank: int | None, newest: int, now: float) -> protocol.WorkerStatus:
    age = None if worker.last_heartbeat is None else round(now - worker.last_heartbeat, 3)
    return protocol.WorkerStatus(
        worker_id=worker.worker_id,
        phase=_worker_phase(worker, rank),
        rank=rank,
        host=worker.host,
        pid=worker.pid,
        seniority=worker.seniority,
        training=worker.training,
        step=worker.step if rank is None else newest,
        heartbeat_age_s=age,
    )


def _worker_phase(worker: Worker, rank: int | None) -> str:
    if worker.leaving:
        return "leaving"
    if worker.phase is WorkerPhase.READY:
        return "spare"
    if rank is not None and worker.activity:
        return worker.activity
    return str(worker.phase.value)
