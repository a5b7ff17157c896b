"""A processor for each process of a benchmark, as if each had a machine of its own.

Some systems, virtual machines above all, leave two busy processes on one processor for a while
though another one is idle: two workers that wait for each other then take half as long again.
"""

from __future__ import annotations

import os


def take(number: int) -> None:
    """Lets all threads of this process, and those that they start, run on one processor only.

    Raises:
      OSError: there is no processor of that number.
    """
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {number})
