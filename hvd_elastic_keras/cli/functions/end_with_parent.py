"""Runs a command that gets SIGTERM when the thread that has started this program ends.

    python -I -S end_with_parent.py PARENT_PID COMMAND...

This is a separate program, because a process with threads may not run Python between `fork` and
`exec`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replaces this process by the command, unless the parent is gone already."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(parent):
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
