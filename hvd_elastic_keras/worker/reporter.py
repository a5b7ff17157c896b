"""What a worker tells during a training: to the master, to people, to the event log.

`MasterReporter` is for a worker of a job, `TerminalReporter` for a process without a master.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hvd_elastic_keras.common import events, protocol
from hvd_elastic_keras.worker.client import MasterClient


class Reporter(Protocol):
    """Tells the master, the event log and people what a worker does."""

    def at(
        self,
        phase: str,
        step: int,
        progress: int,
        reading: protocol.InputPosition | None = None,
    ) -> None:
        """Notes the position for the heartbeat.

        `reading` is the batch of the next step, if batches can only be read from the front.
        """

    def passes(self, phase: str) -> None:
        """Begins a part of a phase, "syncing" or "checkpointing". Waits there if chaos wants it."""

    def show(self, text: str, progress: protocol.Progress | None = None) -> None:
        """Shows text of rank 0 on the terminal of the launcher.

        With `progress`, a launcher that draws progress shows it in place of the text.
        """

    def record(self, entry: events.WorkerEntry) -> None:
        """Adds an entry to the job's `events.jsonl`."""

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        """Shows a line, if there is a text, and adds an entry, if there is one, once per training.

        If several workers tell the same, it counts once, also with different `prefix`es, which
        stand before the text.
        """


class TerminalReporter:
    """Shows lines on this process's own terminal: there is no master and no event log."""

    def at(
        self,
        phase: str,
        step: int,
        progress: int,
        reading: protocol.InputPosition | None = None,
    ) -> None:
        """Does nothing: there is no master."""

    def passes(self, phase: str) -> None:
        """Does nothing: chaos needs a job."""

    def show(self, text: str, progress: protocol.Progress | None = None) -> None:
        """Writes to this process's own terminal."""
        print(text, end="", flush=True)

    def record(self, entry: events.WorkerEntry) -> None:
        """Does nothing: there is no event log without a job."""

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        """Shows the line."""
        if text:
            self.show(f"{prefix}{text}\n")


class MasterReporter:
    """Reports to the master of a job.

    Args:
      training_told: returns the number of the training that a notice belongs to. A notice from the
        preparation of a training comes before that training begins.
    """

    def __init__(self, client: MasterClient, training_told: Callable[[], int]) -> None:
        self._client = client
        self._training_told = training_told
        self.passes = client.hold.begins

    def at(
        self,
        phase: str,
        step: int,
        progress: int,
        reading: protocol.InputPosition | None = None,
    ) -> None:
        """Notes the position for the heartbeat."""
        activity = self._client.activity
        activity.step, activity.progress = step, progress
        self._client.begin(phase)
        activity.reading = reading or activity.reading

    def show(self, text: str, progress: protocol.Progress | None = None) -> None:
        """Shows text on the terminal of the launcher."""
        who = self._client.worker_id
        self._client.post(protocol.Console(worker_id=who, text=text, progress=progress))

    def record(self, entry: events.WorkerEntry) -> None:
        """Adds an entry to the job's `events.jsonl`."""
        who, training = self._client.worker_id, self._client.activity.training
        self._client.post(protocol.Record(worker_id=who, training=training, entry=entry))

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        """Shows a line and adds an entry, unless another worker has told the same."""
        self._client.post(
            protocol.Notice(
                worker_id=self._client.worker_id,
                training=self._training_told(),
                text=text,
                entry=entry,
                prefix=prefix,
            )
        )
