"""Requests of people to add or remove workers: checked and turned into events. Pure."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras import protocol
from hvd_elastic_keras.config import JobConfig
from hvd_elastic_keras.master import actions as act
from hvd_elastic_keras.master.state import State, Worker


@dataclasses.dataclass(frozen=True)
class Change:
    """Events that carry out an accepted request, and what to tell the person."""

    events: tuple[act.AddWorkers | act.RemoveWorker, ...]
    text: str


def plan_change(config: JobConfig, state: State, request: protocol.ChangeRequest) -> Change | str:
    """What a request leads to, or the reason why it is refused."""
    staying = [w for w in state.workers.values() if not w.leaving]
    if state.stop or state.finishing:
        return _why_not_now(state)
    if request.add:
        return _plan_add(config, staying, request.add)
    if request.remove_worker_id:
        leavers = [w for w in staying if w.worker_id == request.remove_worker_id]
        known = ", ".join(sorted(w.worker_id for w in staying))
        if not leavers:
            return f"There is no worker {request.remove_worker_id!r}. Use one of: {known}."
    elif request.remove >= 1:
        # Those that hold least go first: not warm yet, spares, then the youngest members.
        leavers = sorted(staying, key=_seniority, reverse=True)[: request.remove]
    else:
        return "Nothing was asked for. Use add N, remove N or remove WORKER_ID with N >= 1."
    left = len(staying) - len(leavers)
    if left < config.min_workers or request.remove > len(staying):
        return (
            f"{len(staying)} workers minus {max(request.remove, len(leavers))} is below "
            f"min_workers={config.min_workers}; nothing was changed."
        )
    names = ", ".join(w.worker_id for w in leavers)
    events = tuple(act.RemoveWorker(w.worker_id) for w in leavers)
    return Change(events, f"{names} will leave after the current step")


def _why_not_now(state: State) -> str:
    if state.stop:
        return "The job is ending; nothing was changed."
    return (
        f"Training {state.training} is finished; nothing was changed. If the script trains again, "
        "try again then."
    )


def _plan_add(config: JobConfig, staying: list[Worker], count: int) -> Change | str:
    if count < 1:
        return f"add {count} was given, expected at least 1."
    if len(staying) + count > config.max_workers:
        return (
            f"{len(staying)} workers plus {count} is above max_workers={config.max_workers}; "
            "nothing was changed. Start the job with a larger --max_workers."
        )
    verb = "is" if count == 1 else "are"
    return Change((act.AddWorkers(count),), f"{count} more {verb} starting")


def _seniority(worker: Worker) -> tuple[float, int]:
    rank = float("inf") if worker.seniority is None else worker.seniority
    return rank, worker.number
