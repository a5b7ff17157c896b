"""Writes the stacks of a worker that stands still, once for each standstill.

Code in C that keeps Python's lock (GIL) lets no other thread run. No heartbeat is sent then, and no
Python code could tell why. The timer of `faulthandler` needs no lock.
"""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Callable

from hvd_elastic_keras.common import protocol

SILENT_S = 10.0
"""Shorter than the master's limit for silence: the stacks are there when the master tells of it."""
LOOK_S = 1.0
MOST_WRITTEN = 5
"""Limit of the stacks in the log, for an input that is slow at every step, or code that keeps the
lock in every epoch."""
STANDSTILL_S = 30.0
"""How long a callback or an input may take before the stacks are written."""
AT_WORK = ("training", "evaluating", "finishing")
"""Phases in which a worker goes from step to step."""
STDERR = 2
"""Descriptor of the worker's log, whatever a script has made of `sys.stderr`."""

log = logging.getLogger(__name__)


def write_stacks_after(seconds: float) -> None:
    """Starts the timer anew. A process has only one, so this ends a timer of the script."""
    faulthandler.dump_traceback_later(seconds, file=STDERR)


def watch_for_silence(
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


class Standstill:
    """Watches a worker's own heartbeats, in their thread.

    Args:
      write: writes the stacks of all threads to the worker's log.
      clock: seconds of a steady clock.
    """

    def __init__(
        self,
        write: Callable[[], None] = faulthandler.dump_traceback,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._point: tuple[object, ...] = ()
        self._since = 0.0
        self._written = False
        self._left = MOST_WRITTEN

    def look(self, heartbeat: protocol.Heartbeat) -> None:
        """Writes the stacks if nothing has changed for `STANDSTILL_S` outside of collectives."""
        now = self._clock()
        if heartbeat.point != self._point:
            self._point, self._since, self._written = heartbeat.point, now, False
        in_step = heartbeat.in_collective or heartbeat.computing
        own_code = heartbeat.phase in AT_WORK and not in_step
        due = self._left > 0 and not self._written and now - self._since > STANDSTILL_S
        if own_code and due:
            self._written = True
            self._left -= 1
            log.warning(
                "at step %d for %.0f s outside of the step itself; the stacks of all threads:",
                *(heartbeat.step, now - self._since),
            )
            self._write()

    def others_wait(self) -> None:
        """Writes the stacks, because the others have been waiting for this worker for long."""
        log.warning("the others wait for this worker; the stacks of all threads:")
        self._write()
