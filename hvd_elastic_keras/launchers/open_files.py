"""Open files and connections, for the launcher and the processes that it starts.

This module sets their limits, and waits for descriptors of any number: `select.select` accepts only
numbers below 1024.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select

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


def until_readable(descriptor: int, limit_s: float | None = None) -> bool:
    """Waits until data or its end can be read, at most `limit_s`; returns whether it can."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if limit_s is None else 1000 * limit_s))


def until_ended(process: int, limit_s: float | None = None) -> bool:
    """Waits until a process has ended, at most `limit_s`; returns whether it has.

    It need not be a child of this process.
    """
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return until_readable(descriptor, limit_s)
    finally:
        os.close(descriptor)
