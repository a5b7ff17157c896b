"""Decides whether a fault is due and for which worker, and what its outcome and cost are. Pure.

The outcome and the cost are as the job's events tell them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hvd_elastic_keras.chaos.plan import LASTING, LAUNCHER, Fault
from hvd_elastic_keras.common.control import JobStatus, WorkerStatus
from hvd_elastic_keras.common.messages import Message
from hvd_elastic_keras.observe.console import counted, table
from hvd_elastic_keras.observe.job_history import Timed, loss_of


class Fired(Message, frozen=True, kw_only=True):
    """A fault that has happened."""

    time: float
    """Seconds since 1970."""
    worker_id: str = ""
    """Empty for the launcher."""
    rank: int | None = None
    step: int
    """Step of the job, as far as the launcher knew."""
    journal_bytes: int | None = None
    """Length of the launcher's journal, if the fault waited for it."""


class Cost(Message, frozen=True, kw_only=True):
    """How the job has recovered from a fault. Times are in seconds."""

    detected_s: float | None = None
    """From the fault until the launcher acted on it; None if it did not have to, or not yet."""
    round: int | None = None
    """The first round without the worker."""
    stall_s: float | None = None
    """From the last step until all others went on. The next three fields are its parts."""
    noticed_s: float | None = None
    entered_s: float | None = None
    synced_s: float | None = None
    steps_lost: int | None = None
    told: str = ""
    """A remark for people, where numbers are missing or not enough."""


class Outcome(Message, frozen=True, kw_only=True):
    """A row of the report."""

    number: int
    """Number of the fault in the plan, from 1."""
    fault: Fault
    fired: Fired | None = None
    why_not: str = ""
    """Why the fault has not happened."""
    cost: Cost = Cost()


class Report(Message, frozen=True, kw_only=True):
    """The content of `--report`."""

    version: int = 1
    job_dir: str
    ended: str
    """Why chaos ended."""
    outcomes: tuple[Outcome, ...]


def cost_of(
    fault: Fault, fired: Fired, history: Sequence[Timed], others: Iterable[Fired] = ()
) -> Cost:
    """Returns the cost of a fault, as far as the job's events tell it.

    Args:
      others: more faults that have happened. The loss of a worker counts for the last fault that
        happened to it.
    """
    if fault.target == LAUNCHER:
        return _cost_of_launcher(fault, fired, history)
    loss = loss_of(history, fired.worker_id, fired.time)
    later = [o.time for o in others if o.worker_id == fired.worker_id and o.time > fired.time]
    if loss.noticed_at is None or any(time <= loss.noticed_at for time in later):
        return Cost(told="no worker was lost" if fault.kind in LASTING else "not noticed yet")
    detected_s = round(loss.noticed_at - fired.time, 3)
    if fired.rank is None:
        return Cost(detected_s=detected_s, told="it had no rank: nobody waited for it")
    running = loss.running
    if running is None:
        return Cost(detected_s=detected_s, told="no round has run since")
    return Cost(
        detected_s=detected_s,
        round=running.round,
        stall_s=running.stall_s,
        noticed_s=running.noticed_s,
        entered_s=running.entered_s,
        synced_s=running.synced_s,
        steps_lost=running.steps_lost,
    )


def _cost_of_launcher(fault: Fault, fired: Fired, history: Sequence[Timed]) -> Cost:
    if fault.kind in LASTING:
        return Cost(told="the workers train without it")
    since = next((t.time for t in history if t.time > fired.time), None)
    if since is None:
        return Cost(told="nothing was heard of the job since")
    detected_s = round(since - fired.time, 3)
    return Cost(detected_s=detected_s, told="the job was heard of again")


def is_settled(fault: Fault, fired: Fired, cost: Cost) -> bool:
    """Whether the whole cost of a fault is known."""
    if cost.detected_s is None:
        return fault.kind in LASTING
    return fired.rank is None or cost.round is not None


def report_table(outcomes: Sequence[Outcome]) -> str:
    """Returns the report for people, with one row for each fault."""
    head = ("FAULT", "WHO", "AT STEP", "DETECTED", "STALLED", "NOTICE+ENTER+SYNC", "STEPS LOST", "")
    return table([head, *map(_row, outcomes)])


def _row(outcome: Outcome) -> tuple[str, ...]:
    fault, fired, cost = outcome.fault, outcome.fired, outcome.cost
    name = f"{outcome.number} {fault.kind}"
    if fired is None:
        return (name, "-", "-", "-", "-", "-", "-", f"did not happen: {outcome.why_not}")
    rank = "" if fired.rank is None else f" (rank {fired.rank})"
    parts = (cost.noticed_s, cost.entered_s, cost.synced_s)
    return (
        name,
        f"{fired.worker_id}{rank}" if fired.worker_id else LAUNCHER,
        str(fired.step),
        _seconds(cost.detected_s),
        _seconds(cost.stall_s),
        "-" if cost.round is None else "+".join(f"{part or 0.0:.2f}" for part in parts),
        "-" if cost.steps_lost is None else str(cost.steps_lost),
        cost.told,
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


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
