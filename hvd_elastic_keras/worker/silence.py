"""Writes the stacks of a worker in which no Python code can run.

Code in C that keeps Python's lock (GIL) lets no other thread run. No heartbeat is sent then, and no
Python code could tell why. The timer of `faulthandler` needs no lock.
"""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Callable

SILENT_S = 10.0
"""Shorter than the master's limit for silence: the stacks are there when the master tells of it."""
LOOK_S = 1.0
MOST_WRITTEN = 5
"""Limit of the stacks in the log, for code that keeps the lock in every epoch."""
STDERR = 2
"""Descriptor of the worker's log, whatever a script has made of `sys.stderr`."""

log = logging.getLogger(__name__)


def write_stacks_after(seconds: float) -> None:
    """Starts the timer anew. A process has only one, so this ends a timer of the script."""
    faulthandler.dump_traceback_later(seconds, file=STDERR)


def watch(
    stopped: threading.Event,
    start_timer: Callable[[float], None] = write_stacks_after,
    end_timer: Callable[[], None] = faulthandler.cancel_dump_traceback_later,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Has the stacks written if this thread does not run for `SILENT_S`, until it is `stopped`."""
    looked_at, left = clock(), MOST_WRITTEN
    start_timer(SILENT_S)
    while left and not stopped.wait(LOOK_S):
        silent_s, looked_at = clock() - looked_at, clock()
        if silent_s > SILENT_S:
            left -= 1
            log.warning(
                "no Python code ran for %.0f s: code in C kept Python's lock (GIL), or this "
                "process was stopped; above are the stacks of all threads",
                silent_s,
            )
        start_timer(SILENT_S)
    end_timer()
