"""Decides whether a fault is due, and for which worker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hvd_elastic_keras.chaos.plan import Fault
from hvd_elastic_keras.common.control import JobStatus, WorkerStatus
from hvd_elastic_keras.observe.console import counted


def what_it_waits_for(fault: Fault, status: JobStatus, passed_s: float) -> str:
    """Returns the first condition on the job that does not hold yet; empty if all of them hold."""
    # A worker that has a rank for the first time holds no state before its round runs.
    members = sum(w.rank is not None and w.seniority is not None for w in status.workers)
    if passed_s < fault.after_s:
        return f"only {passed_s:.0f} s of {fault.after_s:g} s had passed"
    if fault.step is not None and status.step < fault.step:
        return f"the job was at step {status.step} of {fault.step}"
    if members < fault.min_members:
        return f"{counted(members, 'worker')} trained, not {fault.min_members}"
    return ""


def victim(
    fault: Fault, workers: Sequence[WorkerStatus], held: Mapping[str, str] | None = None
) -> WorkerStatus | str:
    """Returns the worker that a fault happens to, or why there is none yet.

    Args:
      held: by worker id, the phase at whose beginning the worker waits.
    """
    found = _in_question(fault, workers)
    if not found:
        return f"there was no {_described(fault)}"
    phase = fault.phase
    here = held or {}
    fitting = [w for w in found if phase in ("", w.phase, here.get(w.worker_id))]
    if not fitting:
        return f"{found[0].worker_id} was not seen {phase}"
    return fitting[int(fault.choice * len(fitting))]


def wanted_phases(
    faults: Iterable[Fault], status: JobStatus, passed_s: float
) -> dict[str, tuple[str, ...]]:
    """Returns the phases at which workers are to wait, and these workers; no workers means all.

    These are the phases of faults that wait for nothing else.
    """
    found: dict[str, tuple[str, ...]] = {}
    for fault in faults:
        if not fault.phase or what_it_waits_for(fault, status, passed_s):
            continue
        named = fault.worker or fault.rank is not None
        workers = [w.worker_id for w in _in_question(fault, status.workers)] if named else []
        if named and not workers:
            continue  # no worker has that id or rank now
        known = found.get(fault.phase, workers)
        found[fault.phase] = tuple({*known, *workers}) if known and workers else ()
    return found


def _in_question(fault: Fault, workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    if fault.worker:
        return [worker for worker in workers if worker.worker_id == fault.worker]
    members = sorted((w for w in workers if w.rank is not None), key=lambda w: w.rank or 0)
    if fault.rank is not None:
        return members[fault.rank :][:1] if -len(members) <= fault.rank < len(members) else []
    if fault.phase:
        return list(workers)
    return [worker for worker in members if worker.phase != "leaving"]


def _described(fault: Fault) -> str:
    if fault.worker:
        return f"worker {fault.worker}"
    return "worker with a rank" if fault.rank is None else f"rank {fault.rank}"
