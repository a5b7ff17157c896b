"""Which calls of a script write a file that all workers share, so that only one may make them."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hvd_elastic_keras.settings import env
from hvd_elastic_keras.worker.launched_session import session_of_launcher
from hvd_elastic_keras.worker.turns import Turns, turns_of_worker

WHY = "one worker saves, the others wait"


class BlocksOfThread(threading.local):
    """Whether the present thread is within a `with` block of `entered`."""

    are_entered = False

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Enters a block, also within another one."""
        before, self.are_entered = self.are_entered, True
        try:
            yield
        finally:
            self.are_entered = before


_direct = BlocksOfThread()


def direct() -> contextlib.AbstractContextManager[None]:
    """Lets this worker save by itself in a `with` block, without asking the others."""
    return _direct.entered()


def is_direct() -> bool:
    """Whether the present thread is in a `with` block of `direct`."""
    return _direct.are_entered


def is_alone() -> bool:
    """Whether this process has no other workers beside it."""
    return env.worker_environment() is None and session_of_launcher() is None


def turns_in_this_process() -> Callable[[], Turns | None]:
    """Returns a function that returns the turns to be asked for, or None within `direct`.

    It also returns None in a child of this process, which does not speak for the worker.
    """
    pid = os.getpid()
    return lambda: None if _direct.are_entered or os.getpid() != pid else turns_of_worker()


def is_own(given: Any) -> bool:
    """Whether a path is in this worker's directory for temporary files: no other worker has it."""
    return isinstance(given, str | os.PathLike) and shared_path(given) is None


def shared_path(given: Any) -> str | None:
    """Returns the same text for the same file; None if no other worker writes there."""
    if not isinstance(given, str | os.PathLike):
        return None
    text = os.fspath(given)
    if isinstance(text, bytes):
        return None
    if "://" in text:
        return text
    path = Path(os.path.realpath(text))
    scratch = Path(os.path.realpath(tempfile.gettempdir()))
    is_own = scratch.name.startswith(env.SCRATCH_PREFIX) and scratch in path.parents
    return None if is_own else str(path)
