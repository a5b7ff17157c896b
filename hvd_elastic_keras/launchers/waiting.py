"""Waits for descriptors of any number; `select.select` accepts only numbers below 1024."""

from __future__ import annotations

import contextlib
import os
import select


def until_readable(descriptor: int, limit_s: float | None = None) -> bool:
    """Waits until data or its end can be read, at most `limit_s`; returns whether it can."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if limit_s is None else 1000 * limit_s))


def until_ended(process: int) -> None:
    """Waits until a process has ended. It need not be a child of this process."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            until_readable(descriptor)
        finally:
            os.close(descriptor)
