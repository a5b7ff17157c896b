"""Waits for descriptors of any number; `select.select` takes those below 1024 only."""

from __future__ import annotations

import contextlib
import os
import select


def until_readable(descriptor: int, limit_s: float | None = None) -> bool:
    """Whether something can be read, or will not come any more, within a time, if one is given."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if limit_s is None else 1000 * limit_s))


def until_ended(process: int) -> None:
    """Returns when a process has ended; it need not be a child of this one."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            until_readable(descriptor)
        finally:
            os.close(descriptor)
