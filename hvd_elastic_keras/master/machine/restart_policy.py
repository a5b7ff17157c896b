"""Decides what happens after a worker has failed, and says why. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hvd_elastic_keras.master.machine.reasons import (
    by_own_error,
    failure_of,
    first_and_last,
    was_killed,
)
from hvd_elastic_keras.master.machine.state import Replacement, Restarts
from hvd_elastic_keras.settings.job_config import JobConfig

MAX_START_FAILURES = 3
"""Give up after workers fail this many times in a row before they are ready. Do not give up if a
worker of this job has been ready and only something outside of the workers ended them."""
MAX_OWN_ERRORS = 3
"""Give up after this many workers fail at the same step by an error of their own."""
LEAST_OWN_ERRORS = 2
"""Never give up after fewer such errors: a single error may come from the worker's place, such as
storage that does not answer."""
MAX_BACKOFF_S = 30.0
MAX_BACKOFF_BESIDE_OTHERS_S = 600.0
"""Longer than `MAX_BACKOFF_S`: while others train, nobody waits for a replacement."""
HOST_WINDOW_S = 900.0
"""Failures of workers count against their host for this many seconds."""
FREE_HOST_FAILURES = 2
"""This many failures within that time do not count against the host."""
APART_S = 3.0
"""Workers that fail within this many seconds of each other, on a host or while they start, have
failed by one cause."""
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


def after_failure(
    config: JobConfig, restarts: Restarts, training: int, others: int = 0
) -> Restart | GoOn | GiveUp:
    """Decides what happens after the last failure in `restarts`, in training number `training`.

    Args:
      others: number of workers that have been ready. They train on, whatever happens to workers
        that start.
    """
    if not others and (reason := _why_starting_is_no_use(config, restarts, training)):
        return GiveUp(reason)
    if restarts.own_errors >= _most_own_errors(config, restarts, training):
        return GiveUp(
            f"{restarts.own_errors} workers failed in a row by an error of their own, and the job "
            f"got no further (last step reported: {restarts.own_errors_step}); "
            f"{first_and_last(restarts.first_failure, restarts.last_failure)}. The error is in its "
            "log"
        )
    if restarts.used >= config.max_restarts:
        return GoOn(f"no restart is left of {config.max_restarts} (--max_restarts)")
    they_train = others >= config.min_workers
    longest_s = MAX_BACKOFF_BESIDE_OTHERS_S if they_train else MAX_BACKOFF_S
    return Restart(delay_s=min(longest_s, _backoff_s(restarts.start_failures)))


def together(failed_at: float | None, launched_at: float, now: float) -> bool:
    """Whether a worker that fails now has failed together with one that failed at `failed_at`.

    A worker that was launched after that failure, such as the replacement, has not.

    >>> together(10.0, 0.0, 10.2), together(10.0, 11.0, 12.0), together(10.0, 0.0, 60.0)
    (True, False, False)
    """
    return failed_at is not None and launched_at <= failed_at and now - failed_at <= APART_S


def still_counted(
    config: JobConfig,
    replacements: Sequence[Replacement],
    now: float,
    progress: tuple[int, int],
) -> tuple[Replacement, ...]:
    """Returns the replacements that count.

    These are the replacements within the last `restart_window_s` seconds, and all those since which
    training has not gone on.
    """
    return tuple(
        replacement
        for replacement in replacements
        if now - replacement.at <= config.restart_window_s or progress <= replacement.progress
    )


def host_rest_s(replacements: Sequence[Replacement], host: str, now: float) -> float:
    """Returns for how many seconds no worker is started on a host where workers keep failing.

    >>> failed = [Replacement(at, (1, 0), "a") for at in (0.0, 20.0, 60.0, 61.0, 100.0)]
    >>> [host_rest_s(failed[:n], "a", failed[n - 1].at) for n in (1, 2, 3, 4, 5)]
    [0.0, 0.0, 10.0, 10.0, 20.0]
    """
    times = [r.at for r in replacements if r.host == host and now - r.at <= HOST_WINDOW_S]
    failures = sum(i == 0 or at - times[i - 1] > APART_S for i, at in enumerate(times))
    many = failures - FREE_HOST_FAILURES
    return min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** (many - 1)) if many > 0 else 0.0


def _why_starting_is_no_use(config: JobConfig, restarts: Restarts, training: int) -> str:
    """Returns why replacements would also fail before they are ready; empty if they may do better.

    An error of a worker's own is expected to come again, at the latest when all workers of the
    start have had it. Any other cause may pass if a worker was ever ready: then the code is not the
    cause.
    """
    last = f"{failure_of(restarts.last_failure)} before it was ready"
    errors, never_ready = restarts.start_errors, training == 0
    started = (config.num_workers or MAX_START_FAILURES) if never_ready else MAX_START_FAILURES
    if errors >= min(MAX_START_FAILURES, started):
        before = "one" if errors == 2 else f"{errors - 1}"
        same = f", and so did the {before} before it" if errors > 1 else ""
        return f"{last}{same}. The error is in its log"
    if never_ready and restarts.start_failures >= MAX_START_FAILURES:
        return (
            f"{last}. Workers failed so {restarts.start_failures} times in a row, and none was "
            f"ever ready. {_where_to_look(restarts)}"
        )
    return ""


def _where_to_look(restarts: Restarts) -> str:
    last = restarts.last_failure
    if last and by_own_error(last):
        return "The error is in its log"
    if last and was_killed(last):
        return (
            "Something else ended it, mostly because memory ran out (see dmesg); its log shows how "
            "far it had come"
        )
    return "Its log shows how far it had come"


def _most_own_errors(config: JobConfig, restarts: Restarts, training: int) -> int:
    """Returns how many errors of workers' own at the same step make replacements useless.

    Before the first step of a job, all workers of the start are at the same place. In a job of few
    workers, fewer errors are enough then.
    """
    if training > 1 or restarts.own_errors_step:
        return MAX_OWN_ERRORS
    return min(MAX_OWN_ERRORS, max(LEAST_OWN_ERRORS, config.num_workers))


def _backoff_s(start_failures: int) -> float:
    """0, 1, 2, 4, … seconds: a worker that had been ready is replaced at once."""
    return float(2 ** min(start_failures - 1, 30)) if start_failures else 0.0
