"""The parts of the controller that its handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.state import State
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog
from hvd_elastic_keras.settings.job_config import JobConfig


class ChangeSignal:
    """A signal that many tasks wait for, again and again. Used from one event loop only.

    It wakes all of them in one moment. With an `asyncio.Condition`, each of a thousand waiters
    would wait for the lock of the one before.
    """

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def tell(self) -> None:
        """Wakes all waiting tasks."""
        told, self._next = self._next, None
        if told is not None:
            told.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Returns when there is news, or after `timeout_s` seconds."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next], timeout=timeout_s)

    async def wait_for_newer(
        self, version: Callable[[], int], known: int, timeout_s: float
    ) -> None:
        """Returns when `version()` exceeds `known`, or after `timeout_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while version() <= known and loop.time() < deadline:
            await self.wait(deadline - loop.time())


class MasterContext(Protocol):
    """The parts of the controller that its handlers use.

    Attributes:
      events: `events.jsonl`.
      changed: wakes the requests that wait for the state to change.
    """

    config: JobConfig
    job_dir: Path
    console: Console
    events: EventLog
    changed: ChangeSignal

    @property
    def state(self) -> State:
        """The present state of the job."""

    def dispatch(self, *events: act.Event) -> None:
        """Passes events to the state machine."""

    def dispatch_command(self, *events: act.Event) -> None:
        """As `dispatch`; the decisions are written down also if the events change nothing."""

    def keep(self) -> None:
        """Writes the decisions down."""

    async def kept(self) -> None:
        """Waits until all decisions so far are on disk."""

    def on_exit(self, event: WorkerExit) -> None:
        """Handles the end of a worker's process."""
