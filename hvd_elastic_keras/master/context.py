"""The parts of the controller that its handlers share."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hvd_elastic_keras.common.config import JobConfig
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.change_signal import ChangeSignal
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.state import State
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog


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
