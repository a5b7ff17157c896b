"""Finds out from outside whether a process of this machine runs, whatever its own code does.

The Python code of a process may stand still although the process is well. Code in C may hold
Python's lock (GIL), in an extension or while it writes to slow storage. Then no other thread runs,
and no heartbeat is sent. But threads that wait for the lock wake up many times a second. The
threads of a stopped or frozen process do not.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

STOPPED = "TtZXx"
"""States of a process that has ended, or does nothing until somebody continues it."""


class SignsOfLife:
    """Looks at one process again and again.

    Example:

        >>> import os, time
        >>> own = SignsOfLife(os.getpid())
        >>> own.since_last_look(), time.sleep(0.01), own.since_last_look()
        (False, None, True)
    """

    def __init__(self, pid: int) -> None:
        self._process = Path("/proc", str(pid))
        self._seen: int | None = None

    def since_last_look(self) -> bool:
        """Whether the process has run since the last look.

        False at the first look, and for a process that is stopped or gone.
        """
        before, self._seen = self._seen, self._switches()
        return None not in (before, self._seen) and before != self._seen

    def _switches(self) -> int | None:
        """Returns how often its threads have left a processor; None if it is stopped or gone."""
        try:
            stat = (self._process / "stat").read_text(errors="replace")
            threads = list((self._process / "task").iterdir())
        except OSError:
            return None
        if stat.rpartition(")")[2].split()[0] in STOPPED:
            return None
        return sum(map(_switches_of, threads))


def _switches_of(thread: Path) -> int:
    with contextlib.suppress(OSError):  # the thread has ended
        lines = (thread / "status").read_text(errors="replace").splitlines()
        return sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches:" in line)
    return 0
