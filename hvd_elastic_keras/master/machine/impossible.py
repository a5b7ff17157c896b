"""Finds messages of workers that cannot be true. They are refused and change nothing. Pure.

The job takes over the numbers in messages: a step of 1,000,000,000 would become the newest step,
and the next round would report as many steps lost.
"""

from __future__ import annotations

from hvd_elastic_keras.common import events, messages, protocol
from hvd_elastic_keras.master.machine.state import State

MOST_STEPS_AHEAD = 10_000_000
"""More steps than workers take between two messages, even while the launcher is suspended."""


def impossible_in(state: State, message: messages.Message) -> str:
    """Says what cannot be true in a worker's message; empty if nothing speaks against it."""
    training = getattr(message, "training", 0)
    if training > state.training.number + 1:
        return _told("training", training, state.training.number)
    number = getattr(message, "from_round", getattr(message, "round", 0))
    if number > state.rounds.last_number:
        return _told("round", number, state.rounds.last_number)
    step = _step_of(message)
    is_current = getattr(message, "training", state.training.number) == state.training.number
    if is_current and step > state.training.newest_step + MOST_STEPS_AHEAD:
        newest = _newest_step(state)
        if newest is not None and step > newest + MOST_STEPS_AHEAD:
            return _told("step", step, newest)
    return _impossible_reading(state, message)


def _newest_step(state: State) -> int | None:
    """Returns the newest known step; None if workers may stand at any step."""
    training = state.training
    if state.rounds.running is None and not training.newest_step:
        return None  # the first round of a training may begin at the step of a checkpoint
    holders = (w for w in state.workers.values() if w.seniority is not None)
    steps = [w.step for w in holders if w.training == training.number and (w.point or w.entry)]
    # A master that has taken over must first hear how far the workers have come without it.
    return max(training.newest_step, *steps) if steps else None


def _step_of(message: messages.Message) -> int:
    if isinstance(message, protocol.Record):
        return events.step_of(message.entry) or 0
    return int(getattr(message, "step", 0))


def _impossible_reading(state: State, message: messages.Message) -> str:
    told, known = getattr(message, "reading", None), state.training.reading
    if told is None or known is None or told.training != known.training:
        return ""
    if told.progress > known.progress + MOST_STEPS_AHEAD:
        return _told("progress", told.progress, known.progress)
    return ""


def _told(what: str, told: int, known: int) -> str:
    return f"{what} {told} was told of, but this job has come to {what} {known} so far."
