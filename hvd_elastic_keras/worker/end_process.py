"""The end of a worker's process, whatever its main thread does; its launcher may be gone, too."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import threading

from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.errors import MasterUnreachableError

LEAVE_WITHIN_S = 60.0
"""So long a worker without a master may take to leave after its step, a checkpoint included."""
PR_SET_PDEATHSIG = 1
SIG_DFL = 0

log = logging.getLogger(__name__)


def hear_of_keepers_death(keeper_pid: int) -> None:
    """Lets the kernel send SIGTERM to this process when its keeper is killed.

    Raises:
      MasterUnreachableError: it was killed before.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != keeper_pid:
        raise MasterUnreachableError("The keeper of this worker was gone before it started.")


def at_once(code: int) -> None:
    """With an exit code."""
    env.remove_scratch()
    os._exit(code)


def by_sigterm() -> None:
    """As if SIGTERM had not been caught: who looks at the exit code sees what has ended it."""
    env.remove_scratch()
    # Python's `signal.signal` works in the main thread only.
    ctypes.CDLL(None).signal(signal.SIGTERM, SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def if_it_does_not_leave() -> None:
    """In a while, with the stacks of its threads in the log; returns at once."""
    threading.Thread(target=_late, name="elastic-end", daemon=True).start()


def _late() -> None:
    threading.Event().wait(LEAVE_WITHIN_S)
    log.error("this worker has not left within %.0f s: it ends now", LEAVE_WITHIN_S)
    faulthandler.dump_traceback()
    at_once(1)
