"""Requests to add or remove workers or slots, and hosts that come and go, as events. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from hvd_elastic_keras.common import control
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.state import State, Worker, WorkerPhase
from hvd_elastic_keras.observe.console import counted
from hvd_elastic_keras.settings.job_config import JobConfig


@dataclasses.dataclass(frozen=True)
class Change:
    """Events that carry out an accepted request, and what to tell the person."""

    events: tuple[act.AddWorkers | act.RemoveWorker, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class SlotsChange:
    """The event that carries out an accepted request, and what to tell the person.

    `workers` are the ids of the workers that leave or start.
    """

    event: act.GrantSlots | act.RevokeSlots
    text: str
    workers: tuple[str, ...]


def plan_change(config: JobConfig, state: State, request: control.ChangeRequest) -> Change | str:
    """Returns the change that a request leads to, or the reason why it is refused."""
    staying = [w for w in state.workers.values() if not w.leaving]
    if state.stop or state.training.finishing:
        return _why_not_now(state)
    if request.add:
        return _plan_add(config, staying, request.add)
    if request.remove_worker_id:
        leavers = [w for w in staying if w.worker_id == request.remove_worker_id]
        known = ", ".join(sorted(w.worker_id for w in staying))
        if not leavers:
            return f"There is no worker {request.remove_worker_id!r}. Use one of: {known}."
    elif request.remove >= 1:
        leavers = juniors_first(staying)[: request.remove]
    else:
        return "Nothing was asked for. Use add N, remove N or remove WORKER_ID with N >= 1."
    left = len(staying) - len(leavers)
    if left < config.min_workers or request.remove > len(staying):
        return (
            f"{counted(len(staying), 'worker')} minus {max(request.remove, len(leavers))} is below "
            f"min_workers={config.min_workers}; nothing was changed."
        )
    events = tuple(act.RemoveWorker(w.worker_id) for w in leavers)
    return Change(events, _leave_text(leavers))


def _leave_text(leavers: Sequence[Worker], deadline_s: float | None = None) -> str:
    """Says when workers leave: members after the step, those that do not train yet at once."""
    early = (WorkerPhase.STARTING, WorkerPhase.READY)
    members = [w.worker_id for w in leavers if w.phase not in early]
    others = [w.worker_id for w in leavers if w.phase in early]
    parts = []
    if members:
        verb = "is" if len(members) == 1 else "are"
        limit = "" if deadline_s is None else f", or {verb} killed after {deadline_s:g} s"
        parts.append(f"{', '.join(members)} will leave after the current step{limit}")
    if others:
        parts.append(f"{', '.join(others)} {'ends' if len(others) == 1 else 'end'} at once")
    return "; ".join(parts)


def _why_not_now(state: State) -> str:
    if state.stop:
        return "The job is ending; nothing was changed."
    return (
        f"Training {state.training.number} is finished; nothing was changed. "
        "If the script trains again, try again then."
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


def juniors_first(workers: Iterable[Worker]) -> list[Worker]:
    """Sorts workers by what they hold: not warm yet, spares, then the least senior members."""
    return sorted(workers, key=_standing)


def _standing(worker: Worker) -> tuple[int, float, int]:
    phases = (WorkerPhase.STARTING, WorkerPhase.READY)
    stage = phases.index(worker.phase) if worker.phase in phases else len(phases)
    seniority = float("inf") if worker.seniority is None else worker.seniority
    return stage, -seniority, -worker.number


def plan_slots(config: JobConfig, state: State, request: control.SlotsRequest) -> SlotsChange | str:
    """Returns the change that a request leads to, or the reason why it is refused.

    The request must be one without a `mistake`.
    """
    if state.stop or state.training.finishing:
        return _why_not_now(state)
    known = ", ".join(state.slots)
    if request.host and request.host not in state.slots:
        return f"There is no host {request.host!r}; nothing was changed. Use one of: {known}."
    if request.grant:
        if not request.host and len(state.slots) > 1:
            return f"grant was given without a host; nothing was changed. Use one of: {known}."
        host = request.host or next(iter(state.slots))
        return _plan_grant(config, state, host, request.grant)
    hosts = [request.host] if request.host else list(state.slots)
    return _plan_revoke(config, state, hosts, request)


def _plan_grant(config: JobConfig, state: State, host: str, count: int) -> SlotsChange | str:
    if state.target_workers + count > config.max_workers:
        return (
            f"{counted(state.target_workers, 'slot')} plus {count} is above max_workers="
            f"{config.max_workers}; nothing was changed. Start the job with a larger --max_workers."
        )
    first = state.next_worker_number
    workers = tuple(f"w{number}" for number in range(first, first + count))
    verb = "is" if count == 1 else "are"
    return SlotsChange(
        act.GrantSlots(host, count), f"{', '.join(workers)} {verb} starting", workers
    )


def _plan_revoke(
    config: JobConfig, state: State, hosts: Sequence[str], request: control.SlotsRequest
) -> SlotsChange | str:
    count = request.revoke or 0
    there = sum(state.slots[host] for host in hosts)
    if count > there:
        where = f" on {request.host}" if request.host else ""
        return (
            f"{count} were to be revoked, but there {'is' if there == 1 else 'are'} only "
            f"{counted(there, 'slot')}{where}; nothing was changed."
        )
    empty, leavers = slots_to_revoke(state, hosts, count)
    staying = sum(not w.leaving for w in state.workers.values())
    below = f"is below min_workers={config.min_workers}; nothing was changed."
    if state.target_workers - count < config.min_workers:
        return f"{counted(state.target_workers, 'slot')} minus {count} {below}"
    if leavers and staying - len(leavers) < config.min_workers:
        return f"{counted(staying, 'worker')} minus {len(leavers)} {below}"
    workers = tuple(w.worker_id for w in leavers)
    event = act.RevokeSlots(workers, empty, request.deadline_s)
    text = _revoke_text(leavers, sum(empty.values()), request.deadline_s)
    return SlotsChange(event, text, workers)


def slots_to_revoke(
    state: State, hosts: Sequence[str], count: int
) -> tuple[dict[str, int], list[Worker]]:
    """Chooses `count` slots to take back: first empty ones, then those of the least senior workers.

    Returns the number of empty slots by host, and the workers.
    """
    staying = [w for w in state.workers.values() if not w.leaving and w.host in hosts]
    empty: dict[str, int] = {}
    for host in hosts:
        free = state.slots[host] - sum(w.host == host for w in staying)
        taken = min(max(0, free), count - sum(empty.values()))
        if taken:
            empty[host] = taken
    return empty, juniors_first(staying)[: count - sum(empty.values())]


def _revoke_text(leavers: Sequence[Worker], num_empty: int, deadline_s: float | None) -> str:
    gone = f"{counted(num_empty, 'empty slot')} {'is' if num_empty == 1 else 'are'} gone"
    if not leavers:
        return f"{gone}; nobody has to leave"
    text = _leave_text(leavers, deadline_s)
    return f"{text}; {gone}" if num_empty else text


Slots = Mapping[str, int]
"""Number of slots, by host."""


def within(wanted: Slots, most: int) -> dict[str, int]:
    """Returns the first `most` slots, in the order of the hosts.

    >>> within({"a": 2, "b": 4}, 3)
    {'a': 2, 'b': 1}
    """
    left = most
    found = {}
    for host, slots in wanted.items():
        found[host] = min(slots, left)
        left -= found[host]
    return found


def follow(
    config: JobConfig, state: State, known: Slots, wanted: Slots
) -> list[act.GrantSlots | act.RevokeSlots]:
    """Returns the grants and revocations that lead from the `known` slots to the `wanted` ones.

    Slots that were given back in another way (`ctl remove`, SIGTERM) are not granted again. The
    workers of a host that is taken away leave after the current step. Below `min_workers`, the job
    waits.
    """
    before, after = within(known, config.max_workers), within(wanted, config.max_workers)
    changes = {h: after.get(h, 0) - before.get(h, 0) for h in dict.fromkeys([*before, *after])}
    # Revoked slots come first: they may make room for granted ones.
    revoked = [_revoke(state, host, -by) for host, by in changes.items() if by < 0]
    granted = [act.GrantSlots(host, by) for host, by in changes.items() if by > 0]
    return [*(r for r in revoked if r.workers or r.empty), *granted]


def _revoke(state: State, host: str, count: int) -> act.RevokeSlots:
    there = min(count, state.slots.get(host, 0))
    empty, leavers = slots_to_revoke(state, [host] if there else [], there)
    return act.RevokeSlots(tuple(w.worker_id for w in leavers), empty, deadline_s=None)
