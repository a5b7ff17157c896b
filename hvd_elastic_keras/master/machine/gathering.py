"""Rules for rounds: which workers are called, when a round is complete, and their ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.master.machine.phases import Confirming, Entering, Running, Stall, Waiting
from hvd_elastic_keras.master.machine.reasons import START, joins
from hvd_elastic_keras.master.machine.rounds import leaving, open_round
from hvd_elastic_keras.master.machine.state import Worker, WorkerPhase, error_has_ended
from hvd_elastic_keras.master.machine.transition import (
    Transition,
    least_members,
    more_are_coming,
    most_members,
    staying_members,
    useful_workers,
    waiting_workers,
)


def settle_rounds(t: Transition) -> None:
    """Opens a round if one is wanted, and gives places if all called workers are there."""
    if error_has_ended(t.training, t.workers):
        return  # newcomers wait until it is known whether the script catches the error
    match t.phase:
        case Waiting() | Running():
            _open_for_newcomers(t)
        case Entering() as entering:
            _place_if_complete(t, _call_newcomers(t, entering))
        case Confirming():
            pass
    running = t.phase
    if isinstance(running, Running):
        _open_for_leavers(t, running)
        _tell_of_spares(t)


def _open_for_newcomers(t: Transition) -> None:
    waiting, members = waiting_workers(t), staying_members(t)
    room = most_members(t) - len(members)
    if not waiting or t.training.finishing or room <= 0:
        return
    if not t.rounds.running and len(waiting) < least_members(t):
        _say_waiting(t, len(waiting))
        return
    if _more_may_come(t, waiting, room):
        return
    open_round(t, *(map(joins, waiting[:room]) if t.rounds.running else (START,)))
    if isinstance(t.phase, Entering):
        _place_if_complete(t, _call_newcomers(t, t.phase))


def _more_may_come(t: Transition, waiting: list[str], room: int) -> bool:
    """Whether to wait a little, so that workers that start together share a round."""
    if not more_are_coming(t) or len(waiting) >= room:
        return False
    window_s = t.config.join_window_s if t.rounds.running else t.config.start_timeout_s
    first = min(t.workers[w].ready_at or t.now for w in waiting)
    return t.now - first < window_s


def _call_newcomers(t: Transition, entering: Entering) -> Entering:
    room = max(0, most_members(t) - len(entering.called))
    newcomers = [w for w in waiting_workers(t) if w not in entering.called][:room]
    if not newcomers:
        return entering
    for worker_id in newcomers:
        t.change_worker(worker_id, phase=WorkerPhase.MEMBER)
    reasons = entering.reasons
    if reasons != (START,):
        reasons = tuple(dict.fromkeys((*reasons, *map(joins, newcomers))))
    t.phase = entering = replace(
        entering,
        called=entering.called | set(newcomers),
        reasons=reasons,
    )
    return entering


def _place_if_complete(t: Transition, entering: Entering) -> None:
    """Gives all called workers their places if they are at the entrance."""
    if len(entering.called) < least_members(t):
        _say_waiting(t, len(entering.called))
        return
    called = [t.workers[w] for w in entering.called]
    entries = {worker.worker_id: worker.entry for worker in called if worker.entry}
    if len(entries) < len(called):
        return
    ordered = rank_order(called)
    places = assignments(entering.number, ordered, own_machines=t.config.own_machines)
    for worker_id, place in places.items():
        t.change_worker(worker_id, entry=None, phase=WorkerPhase.MEMBER)
        t.give_place(entries[worker_id], place)
    members = tuple(w.worker_id for w in ordered)
    t.rounds = replace(
        t.rounds,
        phase=_confirming(t, entering, members, places),
        last_members=members,
        waiting_since=None,
    )


def _confirming(
    t: Transition,
    entering: Entering,
    members: tuple[str, ...],
    places: dict[str, protocol.Assignment],
) -> Confirming:
    return Confirming(
        number=entering.number,
        reasons=entering.reasons,
        size_before=entering.size_before,
        stall=entering.stall or Stall(t.now),
        members=members,
        places=places,
        assigned_at=t.now,
    )


def _open_for_leavers(t: Transition, running: Running) -> None:
    if running.number <= t.rounds.pending_through:
        return
    there = [t.workers[m] for m in running.members if m in t.workers]
    leavers = [w.worker_id for w in there if w.leaving and w.phase is not WorkerPhase.DONE]
    if leavers:
        open_round(t, *leaving(t, leavers))


def _say_waiting(t: Transition, present: int) -> None:
    coming, least = more_are_coming(t), least_members(t)
    at_start = coming and t.rounds.last_number == t.training.rounds_before
    if t.rounds.waiting_since is not None or at_start:
        return
    t.rounds = replace(t.rounds, waiting_since=t.now)
    t.emit(events.Waiting(workers=present, min_workers=least))
    hint = "a replacement is starting" if coming else "add one with `ctl add 1`"
    t.say(f"waiting: {present} of at least {least} workers are here; {hint}")


def _tell_of_spares(t: Transition) -> None:
    if t.training.finishing or len(staying_members(t)) < most_members(t):
        return
    new = [w for w in waiting_workers(t) if not t.workers[w].told_spare]
    for worker_id in new:
        t.change_worker(worker_id, told_spare=True)
    if new:
        verb = "waits as a spare" if len(new) == 1 else "wait as spares"
        t.say(f"{', '.join(new)} {verb}: {_why_full(t)}")


def _why_full(t: Transition) -> str:
    useful = useful_workers(t)
    if useful and useful < t.config.max_workers:
        return (
            f"a batch is cut into {useful} micro-batch{'' if useful == 1 else 'es'}; a smaller "
            "micro_batch_size gives work to more workers"
        )
    return f"{t.config.max_workers} workers train already (--max_workers)"


def rank_order(workers: Sequence[Worker]) -> list[Worker]:
    """Orders workers by rank: the newest state first, among equals the most senior.

    Rank 0 is the root of the round: the others take its state.
    """
    return sorted(workers, key=lambda w: (*_staleness(w), _seniority(w), w.number))


def _staleness(worker: Worker) -> tuple[bool, int]:
    entry = worker.entry
    return (not entry.has_state, -entry.progress) if entry else (True, 0)


def _seniority(worker: Worker) -> float:
    return float("inf") if worker.seniority is None else worker.seniority


def machine_of(worker: Worker, own_machines: bool) -> str:
    """The machine that a worker is on; see `JobConfig.own_machines`."""
    return worker.worker_id if own_machines and not worker.by_itself else worker.host


def assignments(
    round_number: int, ordered: Sequence[Worker], *, own_machines: bool = False
) -> dict[str, Assignment]:
    """Returns the places of all members, by worker id. The server fills in `rendezvous`."""
    machines = {w.worker_id: machine_of(w, own_machines) for w in ordered}
    hosts = list(dict.fromkeys(machines.values()))
    by_host = {h: [w for w, machine in machines.items() if machine == h] for h in hosts}
    newest = _staleness(ordered[0])
    root_has_state = not newest[0]
    sync = not root_has_state or any(_staleness(w) != newest for w in ordered)
    members = tuple(w.worker_id for w in ordered)
    result = {}
    for rank, worker in enumerate(ordered):
        there = by_host[machines[worker.worker_id]]
        local_rank = there.index(worker.worker_id)
        peers = [h for h in hosts if len(by_host[h]) > local_rank]
        result[worker.worker_id] = Assignment(
            round=round_number,
            rank=rank,
            size=len(ordered),
            local_rank=local_rank,
            local_size=len(there),
            cross_rank=peers.index(machines[worker.worker_id]),
            cross_size=len(peers),
            members=members,
            sync=sync,
            root_has_state=root_has_state,
            rendezvous="",
        )
    return result
