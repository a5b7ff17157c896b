"""Gives each process of a benchmark a processor, as if each had its own machine.

Some systems, above all virtual machines, leave two busy processes on one processor for a while
although another one is idle. Two workers that wait for each other then take half as long again.
"""

from __future__ import annotations

import os


def take(number: int) -> None:
    """Restricts this process to one processor, with all its threads and those that they start.

    Raises:
      OSError: if there is no processor of that number.
    """
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {number})
