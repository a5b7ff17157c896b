"""How many files and connections the launcher may have open, and those it starts."""

from __future__ import annotations

import contextlib
import resource

FILES_PER_WORKER = 6
"""Three connections, and the pipes of a local one; strangers may take a quarter of all."""
OTHER_FILES = 256
Limits = tuple[int, int]
"""The soft and the hard limit."""


def raise_limit() -> Limits:
    """Lets this process open as many as the system permits; returns the limits before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def needed_for(workers: int) -> int:
    """Files that a launcher of so many workers may have open."""
    return workers * FILES_PER_WORKER + OTHER_FILES


def most_workers(limit: int) -> int:
    """How many workers a launcher that may open so many files can have; not below 0."""
    return max(0, limit - OTHER_FILES) // FILES_PER_WORKER


def too_few_for(workers: int) -> str:
    """What to do where this process cannot keep up connections to so many; empty if it can.

    To be asked when the limit is raised.
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
    """Gives another process of this user its limits: `select()` fails there with high numbers."""
    with contextlib.suppress(ValueError, OSError):  # it may have ended already
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
