"""Runs a command that is to get SIGTERM when the thread that has started this program ends.

    python -I -S end_with_parent.py PARENT_PID COMMAND...

A program of its own: between `fork` and `exec`, a process with threads may not run Python.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Becomes the command, unless the parent is gone already."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(parent):
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
