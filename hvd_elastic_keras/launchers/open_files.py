"""Limits of open files and connections, for the launcher and the processes that it starts."""

from __future__ import annotations

import contextlib
import resource

FILES_PER_WORKER = 6
"""Three connections, and the pipes of a local worker. Strangers may take a quarter of all."""
OTHER_FILES = 256
Limits = tuple[int, int]
"""The soft and the hard limit."""


def raise_limit() -> Limits:
    """Lets this process open as many files as the system permits; returns the earlier limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def needed_for(workers: int) -> int:
    """Returns the number of files that a launcher of `workers` workers may have open."""
    return workers * FILES_PER_WORKER + OTHER_FILES


def most_workers(limit: int) -> int:
    """Returns how many workers a launcher can have that may open `limit` files; at least 0."""
    return max(0, limit - OTHER_FILES) // FILES_PER_WORKER


def too_few_for(workers: int) -> str:
    """Returns a warning if this process may open too few files for `workers`; else empty.

    Call it after the limit is raised.
    """
    least = needed_for(workers)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= least:
        return ""
    return (
        f"warning: this process may open {soft:,} files, and {workers:,} workers (--max_workers) "
        f"need {least:,}. Raise the hard limit (`ulimit -Hn`, or LimitNOFILE of a service)"
    )


def set_limit(pid: int, limits: Limits) -> None:
    """Sets the limits of another process, in which `select()` fails with high file numbers."""
    with contextlib.suppress(ValueError, OSError):  # the process may have ended already
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
