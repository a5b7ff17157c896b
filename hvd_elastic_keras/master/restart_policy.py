"""What happens after a worker has failed. A pure function that returns its reason."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.config import JobConfig
from hvd_elastic_keras.master.state import State

MAX_START_FAILURES = 3
"""So many failures in a row before a worker was ready mean that starting is no use."""
MAX_OWN_ERRORS = 3
"""So many workers that fail by an error of their own at the same step will go on doing so."""
MAX_BACKOFF_S = 30.0


@dataclasses.dataclass(frozen=True)
class Restart:
    """Start a replacement after `delay_s` seconds."""

    delay_s: float


@dataclasses.dataclass(frozen=True)
class GoOn:
    """Do not start a replacement; the others go on, or wait."""

    reason: str


@dataclasses.dataclass(frozen=True)
class GiveUp:
    """End the job."""

    reason: str


def after_failure(config: JobConfig, state: State) -> Restart | GoOn | GiveUp:
    """Decides after the failure that is the last one noted in `state`."""
    if state.start_failures >= _most_start_failures(config, state):
        number = state.start_failures
        before = "one" if number == 2 else f"{number - 1}"
        others = f", and so did the {before} before it" if number > 1 else ""
        return GiveUp(f"{state.last_failure} before it was ready{others}. The error is in its log")
    if state.own_errors >= MAX_OWN_ERRORS:
        return GiveUp(
            f"{state.own_errors} workers failed at step {state.own_errors_step} by an error of "
            f"their own; the last failure was {state.last_failure}. The error is in its log"
        )
    if state.restarts_used >= config.max_restarts:
        return GoOn(f"no restart is left of {config.max_restarts} (--max_restarts)")
    return Restart(delay_s=_backoff_s(state.start_failures))


def _most_start_failures(config: JobConfig, state: State) -> int:
    """Failures in a row before a worker was ready that mean that starting is no use.

    If all workers of the start have ended themselves with an error, and none was ever ready, their
    replacements would do the same.
    """
    all_by_themselves = state.training == 0 and state.own_errors == state.start_failures
    return min(MAX_START_FAILURES, config.num_workers if all_by_themselves else MAX_START_FAILURES)


def _backoff_s(start_failures: int) -> float:
    """0, 1, 2, 4, … seconds: a worker that had been ready is replaced at once."""
    return min(MAX_BACKOFF_S, float(2 ** (start_failures - 1))) if start_failures else 0.0
