"""Finds out, from the master's state, what the job's time is spent on. Pure."""

from __future__ import annotations

from hvd_elastic_keras.common.goodput import Part, Spent
from hvd_elastic_keras.master.machine.phases import Confirming, Entering, Running, Stall
from hvd_elastic_keras.master.machine.state import Rounds, State, training_is_over

AT_WORK = (Part.TRAINING, Part.EVALUATING, Part.RECOMPUTING, Part.FINISHING)
"""Parts in which workers seem to be at work. It may turn out later that no worker had taken a step
any more."""
OF_ACTIVITY = {"evaluating": Part.EVALUATING, "finishing": Part.FINISHING}


def passed(state: State, now: float) -> Spent:
    """Returns what the time until now was spent on, if nothing has happened since `state`."""
    return state.spent.up_to(now, part_of(state))


def part_of(state: State) -> Part:
    """Returns the part to which the present time belongs."""
    rounds = state.rounds
    if state.stop and rounds.running is None:
        return Part.ENDING
    if rounds.waiting_since is not None:
        return Part.WAITING
    match rounds.phase:
        case Running() as running:
            return _at_work(state, running)
        case Entering(still_running=Running() as running, stall=None):
            return _at_work(state, running)
        case Entering(size_before=size) if size:
            return Part.RE_FORMING
        case Confirming():
            return Part.SYNCING
    if state.training.finishing and not training_is_over(state.training, state.workers):
        return Part.FINISHING
    return Part.SCRIPT if rounds.last_number else Part.STARTING


def _at_work(state: State, running: Running) -> Part:
    root = state.workers.get(running.members[0])
    if state.training.finishing:
        return Part.FINISHING
    part = OF_ACTIVITY.get(root.activity if root else "", Part.TRAINING)
    repeats = state.training.newest_step < state.training.repeats_until
    return Part.RECOMPUTING if repeats and part is Part.TRAINING else part


def with_stall(spent: Spent, before: Rounds, after: Rounds, now: float) -> Spent:
    """Returns `spent`, corrected if the last step turns out to be earlier than it had seemed."""
    stall = _stall_of(after)
    if stall is None:
        return spent
    known = _stall_of(before)
    late_s = (known.since if known else now) - stall.since
    to = Part.RE_FORMING if stall.noticed_at is None else Part.DETECTING
    return spent.moved(late_s, AT_WORK, to) if late_s > 0 else spent


def _stall_of(rounds: Rounds) -> Stall | None:
    return rounds.forming.stall if rounds.forming else None
