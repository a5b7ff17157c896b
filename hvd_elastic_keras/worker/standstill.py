"""Writes the stacks of a worker that stands still in its own code, once for each standstill."""

from __future__ import annotations

import faulthandler
import logging
import time
from collections.abc import Callable

from hvd_elastic_keras.common import protocol

log = logging.getLogger(__name__)
STANDSTILL_S = 30.0
"""How long a callback or an input may take before the stacks are written."""
MOST_WRITTEN = 5
"""Limit of the stacks in the log, for an input that is slow at every step."""
AT_WORK = ("training", "evaluating", "finishing")
"""Phases in which a worker goes from step to step."""


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
        self._point: protocol.Heartbeat | None = None
        self._since = 0.0
        self._written = False
        self._left = MOST_WRITTEN

    def look(self, heartbeat: protocol.Heartbeat) -> None:
        """Writes the stacks if nothing has changed for `STANDSTILL_S` outside of collectives."""
        now = self._clock()
        if heartbeat != self._point:
            self._point, self._since, self._written = heartbeat, now, False
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
