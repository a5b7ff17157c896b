"""Rules that hold at any time: which workers a round calls, and when it is complete. Pure."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.master.machine.capacity import (
    least_members,
    more_are_coming,
    most_members,
    staying_members,
    useful_workers,
    waiting_workers,
)
from hvd_elastic_keras.master.machine.phases import Confirming, Entering, Running, Stall, Waiting
from hvd_elastic_keras.master.machine.placement import assignments, rank_order
from hvd_elastic_keras.master.machine.reasons import START, joins
from hvd_elastic_keras.master.machine.rounds import leaving, open_round
from hvd_elastic_keras.master.machine.state import WorkerPhase
from hvd_elastic_keras.master.machine.transition import Transition


def settle_rounds(t: Transition) -> None:
    """Opens a round if one is wanted, and gives places if all called workers are there."""
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
    t.phase = entering = dataclasses.replace(
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
    t.rounds = dataclasses.replace(
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
    t.rounds = dataclasses.replace(t.rounds, waiting_since=t.now)
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
