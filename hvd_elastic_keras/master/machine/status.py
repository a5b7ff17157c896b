"""The answer to `ctl status`. Pure."""

from __future__ import annotations

from hvd_elastic_keras.common import control
from hvd_elastic_keras.common.goodput import rounded
from hvd_elastic_keras.master.machine.phases import Confirming, Entering, Running, Waiting
from hvd_elastic_keras.master.machine.reasons import told
from hvd_elastic_keras.master.machine.state import (
    Rounds,
    State,
    Worker,
    WorkerPhase,
    training_is_over,
)
from hvd_elastic_keras.master.machine.time_limits import what_they_do
from hvd_elastic_keras.master.machine.time_spent import passed
from hvd_elastic_keras.settings.job_config import JobConfig


def job_status(
    config: JobConfig, state: State, now: float, warnings: tuple[str, ...] = ()
) -> control.JobStatus:
    """Returns the phase of the job, its round and its workers. `warnings` are the launcher's."""
    phase, detail = _phase(state)
    members = _members(state.rounds)
    # Members take their steps together; their heartbeats only come at different moments.
    newest = max((state.workers[m].step for m in members if m in state.workers), default=0)
    # A worker that is ready while a round begins has a place in it.
    has_spares = isinstance(state.rounds.phase, Running)
    rows = tuple(
        _row(
            worker,
            members.index(worker_id) if worker_id in members else None,
            newest,
            now,
            has_spares=has_spares,
        )
        for worker_id, worker in sorted(state.workers.items(), key=lambda item: item[1].number)
    )
    return control.JobStatus(
        phase=phase,
        detail=detail,
        training=state.training.number,
        round=state.rounds.running.number if state.rounds.running else state.rounds.last_number,
        step=max([state.training.newest_step, *_steps(state)]),
        target_workers=state.target_workers,
        slots=_slots(state),
        min_workers=config.min_workers,
        max_workers=config.max_workers,
        restarts_used=state.restarts.used,
        max_restarts=config.max_restarts,
        spent_s=rounded(passed(state, now)),
        warnings=warnings,
        workers=rows,
    )


def _members(rounds: Rounds) -> tuple[str, ...]:
    """Returns the workers that have a rank, by rank."""
    if isinstance(rounds.phase, Confirming):
        return rounds.phase.members
    return rounds.running.members if rounds.running else ()


def _slots(state: State) -> tuple[control.HostSlots, ...]:
    hosts = [worker.host for worker in state.workers.values()]
    return tuple(
        control.HostSlots(host=host, granted=granted, used=hosts.count(host))
        for host, granted in state.slots.items()
    )


def _steps(state: State) -> list[int]:
    return [w.step for w in state.workers.values() if w.training == state.training.number]


def _phase(state: State) -> tuple[str, str]:
    if state.stop:
        return "stopping", state.stop
    if training_is_over(state.training, state.workers):
        return "done", f"training {state.training.number} is finished, the script goes on"
    if state.training.finishing:
        return "finishing", ""
    if state.rounds.waiting_since is not None:
        return "waiting", "too few workers"
    match state.rounds.phase:
        case Entering(reasons=reasons) | Confirming(reasons=reasons):
            return "changing", told(reasons)
        case Running():
            return "running", ""
        case Waiting():
            starting = (w for w in state.workers.values() if w.phase is WorkerPhase.STARTING)
            return "starting", what_they_do(w for w in starting if w.pending is None)


def _row(
    worker: Worker, rank: int | None, newest: int, now: float, *, has_spares: bool
) -> control.WorkerStatus:
    age = None if worker.last_heartbeat is None else round(now - worker.last_heartbeat, 3)
    return control.WorkerStatus(
        worker_id=worker.worker_id,
        phase=_worker_phase(worker, rank, has_spares=has_spares),
        rank=rank,
        host=worker.host,
        pid=worker.pid,
        seniority=worker.seniority,
        training=worker.training,
        step=worker.step if rank is None else newest,
        heartbeat_age_s=age,
        cores=worker.cores,
        memory_bytes=worker.memory_bytes,
    )


def _worker_phase(worker: Worker, rank: int | None, *, has_spares: bool) -> str:
    if worker.leaving:
        return "leaving"
    if worker.pending is not None:
        return "pending"
    if worker.phase is WorkerPhase.READY and has_spares:
        return "spare"
    if rank is not None and worker.activity:
        return worker.activity
    return str(worker.phase.value)
