"""How a round is opened, breaks and runs. Pure.

A round is `Entering` (called workers come to the entrance and report their step), then `Confirming`
(the members have their places), then `Running`, until it is *pending* (a planned change: all stop
after the same step) or *broken* (a member is gone: its collectives cannot complete).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.batch_plan import describe_shares, shares_of
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.phases import Confirming, Entering, Running, Stall, Waiting
from hvd_elastic_keras.master.machine.reasons import (
    START,
    Reason,
    leaves,
    told,
    with_cause,
    without_joining,
)
from hvd_elastic_keras.master.machine.state import WorkerPhase
from hvd_elastic_keras.master.machine.transition import Transition, staying_members


def open_round(t: Transition, *reasons: Reason) -> None:
    """Begins the next round, or adds reasons to the one that workers are entering."""
    match t.phase:
        case Waiting():
            _enter_from(t, reasons, None)
        case Running() as running:
            _enter_from(t, reasons, running)
        case Entering() as entering:
            t.phase = replace(entering, reasons=(*entering.reasons, *reasons))
        case Confirming():
            pass  # `settle_rounds` opens another round when this one runs


def _enter_from(t: Transition, reasons: tuple[Reason, ...], running: Running | None) -> None:
    number = t.rounds.last_number + 1
    entering = Entering(
        number=number,
        reasons=reasons,
        opened_at=t.now,
        called=frozenset(staying_members(t)),
        size_before=len(running.members) if running else 0,
        still_running=running,
        stall=None if running else Stall(t.now, ran_since=t.now),
    )
    t.rounds = replace(
        t.rounds,
        phase=entering,
        last_number=number,
        pending_through=running.number if running else t.rounds.pending_through,
    )
    t.emit(events.RoundOpened(round=number, reason=told(reasons)))


def break_round(t: Transition, reason: Reason, stood_since: float | None = None) -> None:
    """Ends the newest round, which has lost a member, and forms the next one without delay.

    Args:
      stood_since: the time since which the lost member had not moved; None if that is not known.
    """
    match t.phase:
        case Running(members=members) as running:
            stall = _stall_of_break(t, running, stood_since)
            _enter_after_break(t, (reason,), staying_members(t), len(members), stall)
        case Entering(still_running=Running() as running) as entering:
            stall = _stall_of_break(t, running, stood_since)
            if entering.stall:
                stall = stall.begun(entering.stall.since)
            _break_before_change(t, entering, running.number, reason, stall)
        case Confirming() as confirming:
            # The members are called again, before all of them ran.
            survivors = [m for m in confirming.members if m in t.workers]
            reasons = (*confirming.reasons, reason)
            size, stall = confirming.size_before, confirming.stall
            if stall.noticed_at is None:
                stall = replace(stall, noticed_at=t.now)
            _enter_after_break(t, reasons, survivors, size, stall)
        case Entering() | Waiting():
            pass  # no round runs that could break


def _stall_of_break(t: Transition, running: Running, stood_since: float | None) -> Stall:
    stall = Stall(t.now, noticed_at=t.now, ran_since=running.since)
    return stall if stood_since is None else stall.begun(stood_since)


def _break_before_change(
    t: Transition, entering: Entering, number: int, reason: Reason, stall: Stall
) -> None:
    """Breaks the running round before its planned change."""
    entering = replace(
        entering,
        reasons=(*entering.reasons, reason),
        still_running=None,
        stall=stall,
    )
    t.rounds = replace(t.rounds, phase=entering, broken_through=number)
    t.actions.append(act.CloseRendezvous(number))


def _enter_after_break(
    t: Transition,
    reasons: tuple[Reason, ...],
    survivors: Iterable[str],
    size_before: int,
    stall: Stall,
) -> None:
    broken = t.rounds.last_number
    t.actions.append(act.CloseRendezvous(broken))
    if t.stop:
        t.rounds = replace(t.rounds, phase=Waiting(), broken_through=broken)
        return
    training = {s for s in survivors if t.workers[s].phase is not WorkerPhase.DONE}
    leavers = {s for s in training if t.workers[s].leaving}
    entering = Entering(
        number=broken + 1,
        reasons=(*_still_true(t, reasons), *leaving(t, leavers)),
        opened_at=t.now,
        called=frozenset(training - leavers),
        size_before=size_before,
        stall=stall,
    )
    t.rounds = replace(t.rounds, phase=entering, last_number=broken + 1, broken_through=broken)
    t.emit(events.RoundOpened(round=broken + 1, reason=str(reasons[-1])))


def _still_true(t: Transition, reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """Returns the reasons without the joining of workers that are gone or leave."""
    staying = {worker.worker_id for worker in t.staying}
    for worker_id in [r.worker_id for r in reasons if r.worker_id not in staying]:
        reasons = without_joining(reasons, worker_id)
    return tuple(reasons)


def leaving(t: Transition, worker_ids: Iterable[str]) -> list[Reason]:
    """Returns a reason for each member that leaves."""
    return [leaves(w, t.workers[w].leaving) for w in sorted(worker_ids)]


def name_cause(t: Transition, reason: Reason) -> None:
    """Names the cause of the break, now that it is known, among the reasons of the next round."""
    if isinstance(t.phase, Entering):
        t.phase = replace(t.phase, reasons=with_cause(t.phase.reasons, reason))


def uncall(t: Transition, entering: Entering, worker_id: str) -> None:
    """Stops awaiting a worker."""
    t.phase = replace(
        entering,
        called=entering.called - {worker_id},
        reasons=without_joining(entering.reasons, worker_id),
    )


def confirm(t: Transition, confirming: Confirming, worker_id: str, step: int) -> None:
    """Notes that a member runs. The round runs when all members do."""
    if worker_id == confirming.members[0]:
        confirming = replace(confirming, root_step=step)
    confirmed = confirming.confirmed | {worker_id}
    t.phase = confirming = replace(confirming, confirmed=confirmed)
    if len(confirmed) == len(confirming.members):  # `confirmed` holds members only
        run_round(t, confirming)


def run_round(t: Transition, confirming: Confirming) -> None:
    """Lets the members train from the root's step on."""
    lost = max(0, t.training.newest_step - confirming.root_step)
    t.rounds = replace(
        t.rounds,
        phase=Running(confirming.number, confirming.members, t.now),
        next_seniority=_give_seniority(t, confirming.members),
        waiting_since=None,
    )
    t.training = replace(
        t.training,
        newest_step=confirming.root_step,
        repeats_until=max(t.training.repeats_until, t.training.newest_step),
        reading=None if lost else t.training.reading,
    )
    _tell_of_round(t, confirming, lost)


def _give_seniority(t: Transition, members: Sequence[str]) -> int:
    """Numbers the members that hold a state for the first time; returns the next number."""
    seniority = t.rounds.next_seniority
    for member in members:
        if member in t.workers and t.workers[member].seniority is None:
            t.change_worker(member, seniority=seniority)
            seniority += 1
    return seniority


# --- how it is told ----------------------------------------------------------------------


def _tell_of_round(t: Transition, confirming: Confirming, lost: int) -> None:
    shares = _micro_batches(t, len(confirming.members))
    stall_s = round(t.now - confirming.stall.since, 3)
    noticed_s, entered_s, synced_s = confirming.stall.parts(confirming.assigned_at, t.now)
    t.emit(
        events.RoundRunning(
            round=confirming.number,
            training=t.training.number,
            world_size=len(confirming.members),
            members=list(confirming.members),
            micro_batches=shares,
            reason=told(confirming.reasons),
            step=confirming.root_step,
            stall_s=stall_s,
            noticed_s=round(noticed_s, 3),
            entered_s=round(entered_s, 3),
            synced_s=round(synced_s, 3),
            steps_lost=lost,
        )
    )
    t.say(round_line(confirming, shares, t.training.number, lost, stall_s))


def _micro_batches(t: Transition, size: int) -> list[int]:
    """Returns how many each of `size` workers computes; empty for the user's own training loop."""
    number = t.training.num_micro_batches
    if not number:
        return []
    return [number] * size if t.training.batch_grows else shares_of(size, number)


def round_line(
    confirming: Confirming, shares: list[int], training: int, lost: int, stall_s: float
) -> str:
    """Says who trains from now on, why, and what the change has cost.

    Args:
      shares: micro-batches of each member; empty for the user's own training loop.
      lost: steps that have to be trained again.
    """
    size, before = len(confirming.members), confirming.size_before
    change = f"{before} → {size}" if before else f"{size}"
    plural = "" if size == 1 else "s"
    members = ", ".join(confirming.members)
    noun = "micro-batch" if sum(shares) == 1 else "micro-batches"
    parts = f", {describe_shares(shares)} {noun}" if shares else ""
    if not before and confirming.reasons == (START,):
        what = f"start training {training}" if training > 1 else "start"
        return f"round {confirming.number}: {size} worker{plural} ({members}) {what}{parts}"
    unit = "step" if shares else "commit"  # the user's own loop has no shares
    return (
        f"round {confirming.number}: {change} worker{plural} ({members}){parts}: "
        f"{told(confirming.reasons)}; stalled {stall_s:.2f} s, "
        f"{lost} {unit}{'' if lost == 1 else 's'} lost"
    )
