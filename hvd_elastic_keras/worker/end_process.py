"""Ends a worker's process, whatever its main thread does. Its launcher may be gone, too."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import threading

from hvd_elastic_keras.common.errors import MasterUnreachableError
from hvd_elastic_keras.settings import env

LEAVE_WITHIN_S = 60.0
"""Time for a worker without a master to leave after its step, a checkpoint included."""
PR_SET_PDEATHSIG = 1
SIG_DFL = 0

log = logging.getLogger(__name__)


def hear_of_keepers_death(keeper_pid: int) -> None:
    """Lets the kernel send SIGTERM to this process when its keeper is killed.

    Raises:
      MasterUnreachableError: the keeper was killed before.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != keeper_pid:
        raise MasterUnreachableError("The keeper of this worker was gone before it started.")


def at_once(code: int) -> None:
    """Ends the process at once with an exit code."""
    env.remove_scratch()
    os._exit(code)


def by_sigterm() -> None:
    """Ends the process as if SIGTERM had not been caught. Its exit code shows the signal."""
    env.remove_scratch()
    # Python's `signal.signal` works in the main thread only.
    ctypes.CDLL(None).signal(signal.SIGTERM, SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def if_it_does_not_leave() -> None:
    """Ends the process later if it is still there, with its stacks in the log. Returns at once."""
    threading.Thread(target=_late, name="elastic-end", daemon=True).start()


def _late() -> None:
    threading.Event().wait(LEAVE_WITHIN_S)
    log.error("this worker has not left within %.0f s: it ends now", LEAVE_WITHIN_S)
    faulthandler.dump_traceback()
    at_once(1)
