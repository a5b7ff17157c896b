"""A clock that runs only while the master runs: no worker is late because the master stood still.

Ctrl-Z, the pause of a virtual machine or a long swap stop the master, but not the system's clock.
When the master wakes up, every worker would look silent for all of that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 2.0
"""A longer gap means that the master stood still: it never takes this long for anything, and it
reads the clock far more often."""


def told(seconds: float) -> str:
    """Returns the line that tells people of a gap."""
    return (
        f"the launcher stood still for {seconds:.0f} s (suspended, or out of memory); the workers "
        "are not held to account for it"
    )


class AwakeClock:
    """A steady clock that leaves out each gap of more than `PAUSE_S` seconds between two calls.

    Args:
      on_pause: called with the length of each gap, in seconds.
    """

    def __init__(
        self, on_pause: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_pause = on_pause
        self._clock = clock
        self._last = clock()
        self._left_out = 0.0

    def __call__(self) -> float:
        """Returns the seconds since some point in time."""
        now = self._clock()
        gap, self._last = now - self._last, now
        if gap > PAUSE_S:
            self._left_out += gap
            self._on_pause(gap)
        return now - self._left_out
