"""What happens after a worker has failed. A pure function that returns its reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.master.machine.departure import failure_of, first_and_last
from hvd_elastic_keras.master.machine.state import Replacement, Restarts

MAX_START_FAILURES = 3
"""So many failures in a row before a worker was ready mean that starting is no use."""
MAX_OWN_ERRORS = 3
"""So many workers that fail by an error of their own at the same step will go on doing so."""
LEAST_OWN_ERRORS = 2
"""One alone may be that of its place: storage that does not answer, say."""
MAX_BACKOFF_S = 30.0
HOST_WINDOW_S = 900.0
"""Failures of workers on a host are held against it for so long."""
FREE_HOST_FAILURES = 2
"""So many within that time are none of the host's."""
APART_S = 3.0
"""What fails on a host within so many seconds has failed by one cause."""
FIRST_REST_S = 10.0
LONGEST_REST_S = 600.0


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


def after_failure(config: JobConfig, restarts: Restarts, training: int) -> Restart | GoOn | GiveUp:
    """Decides after the failure that is the last one noted, in training number `training`."""
    last = failure_of(restarts.last_failure)
    if restarts.start_failures >= _most_start_failures(config, restarts, training):
        number = restarts.start_failures
        before = "one" if number == 2 else f"{number - 1}"
        others = f", and so did the {before} before it" if number > 1 else ""
        return GiveUp(f"{last} before it was ready{others}. The error is in its log")
    if restarts.own_errors >= _most_own_errors(config, restarts, training):
        return GiveUp(
            f"{restarts.own_errors} workers failed at step {restarts.own_errors_step} by an error "
            f"of their own; {first_and_last(restarts.first_failure, restarts.last_failure)}. The "
            "error is in its log"
        )
    if restarts.used >= config.max_restarts:
        return GoOn(f"no restart is left of {config.max_restarts} (--max_restarts)")
    return Restart(delay_s=_backoff_s(restarts.start_failures))


def still_counted(
    config: JobConfig,
    replacements: Sequence[Replacement],
    now: float,
    progress: tuple[int, int],
) -> tuple[Replacement, ...]:
    """Those that count: the newer ones, and all since which training has not gone on."""
    return tuple(
        replacement
        for replacement in replacements
        if now - replacement.at <= config.restart_window_s or progress <= replacement.progress
    )


def host_rest_s(replacements: Sequence[Replacement], host: str, now: float) -> float:
    """How long no worker is started on a host where they fail again and again.

    >>> failed = [Replacement(at, (1, 0), "a") for at in (0.0, 20.0, 60.0, 61.0, 100.0)]
    >>> [host_rest_s(failed[:n], "a", failed[n - 1].at) for n in (1, 2, 3, 4, 5)]
    [0.0, 0.0, 10.0, 10.0, 20.0]
    """
    times = [r.at for r in replacements if r.host == host and now - r.at <= HOST_WINDOW_S]
    failures = sum(i == 0 or at - times[i - 1] > APART_S for i, at in enumerate(times))
    many = failures - FREE_HOST_FAILURES
    return min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** (many - 1)) if many > 0 else 0.0


def _most_start_failures(config: JobConfig, restarts: Restarts, training: int) -> int:
    """Failures in a row before a worker was ready that mean that starting is no use.

    If all workers of the start have ended themselves with an error, and none was ever ready, their
    replacements would do the same.
    """
    all_by_themselves = training == 0 and restarts.own_errors == restarts.start_failures
    started = config.num_workers or MAX_START_FAILURES
    return min(MAX_START_FAILURES, started if all_by_themselves else MAX_START_FAILURES)


def _most_own_errors(config: JobConfig, restarts: Restarts, training: int) -> int:
    """Errors of workers' own at the same step that mean that replacements are no use.

    Before the first step of a job, all workers of the start are at the same place.
    """
    if training > 1 or restarts.own_errors_step:
        return MAX_OWN_ERRORS
    return min(MAX_OWN_ERRORS, max(LEAST_OWN_ERRORS, config.num_workers))


def _backoff_s(start_failures: int) -> float:
    """0, 1, 2, 4, … seconds: a worker that had been ready is replaced at once."""
    return min(MAX_BACKOFF_S, float(2 ** (start_failures - 1))) if start_failures else 0.0
