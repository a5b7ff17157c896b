"""Stops a process for most of the time, as a CPU quota does."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

LIMIT_S = 100.0


@contextlib.contextmanager
def paused(pid: int, stop_s: float, run_s: float) -> Iterator[None]:
    """Stops the process for `stop_s` and lets it run for `run_s`, in turn, during the block."""
    over = threading.Event()
    thread = threading.Thread(target=_pause, args=(pid, stop_s, run_s, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _pause(pid: int, stop_s: float, run_s: float, over: threading.Event) -> None:
    deadline = time.monotonic() + LIMIT_S
    with contextlib.suppress(ProcessLookupError):
        while not over.wait(run_s) and time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            try:
                over.wait(stop_s)
            finally:
                os.kill(pid, signal.SIGCONT)
