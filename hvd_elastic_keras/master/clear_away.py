"""Waits for the workers to leave at the end of a job."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection

from hvd_elastic_keras.launchers.base import Launcher

POLL_S = 0.02
AFTER_KILL_S = 10.0


async def clear_away(
    launcher: Launcher, told: Collection[str], grace_s: float, at_once: Callable[[], bool]
) -> None:
    """Waits for the workers to leave, and kills those that do not within `grace_s` seconds.

    Workers that are not in `told` are still starting and do not know that the job has ended: they
    are killed first. As soon as `at_once()` is true, the other workers are killed, too.
    """
    deadline = time.monotonic() + grace_s
    for worker_id in launcher.running():
        if worker_id not in told:
            launcher.kill(worker_id)
    while launcher.running() and time.monotonic() < deadline and not at_once():
        await asyncio.sleep(POLL_S)
    for worker_id in launcher.running():
        launcher.kill(worker_id)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_all_gone(launcher), timeout=AFTER_KILL_S)


async def _all_gone(launcher: Launcher) -> None:
    while launcher.running():
        await asyncio.sleep(POLL_S)
