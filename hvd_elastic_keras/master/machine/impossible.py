"""What a worker cannot have done: such a message is refused and changes nothing. Pure.

Numbers of messages become the job's own: a step of 1,000,000,000 would be the newest, and the round
after it would tell of as many steps lost.
"""

from __future__ import annotations

from hvd_elastic_keras.common import events, messages, protocol
from hvd_elastic_keras.master.machine.state import State

MOST_STEPS_AHEAD = 10_000_000
"""More than workers take between two messages, also while the launcher is suspended."""


def impossible_in(state: State, message: messages.Message) -> str:
    """What cannot be true of a worker's message; empty if nothing is known against it."""
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
    """The newest step that is known; None if workers may stand at any."""
    training = state.training
    if state.rounds.running is None and not training.newest_step:
        return None  # the first round of a training may begin at the step of a checkpoint
    holders = (w for w in state.workers.values() if w.seniority is not None)
    steps = [w.step for w in holders if w.training == training.number and (w.point or w.entry)]
    # A master that has taken over has to hear first how far they have come without it.
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
