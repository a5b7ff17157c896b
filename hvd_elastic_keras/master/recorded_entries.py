"""Writes the entries of rank 0 to `events.jsonl`, and shows some of them to people."""

from __future__ import annotations

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.protocol import Notice, Record
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EventLog


class RecordedEntries:
    """Writes entries, and remembers the newest step that they are about."""

    def __init__(self, console: Console, log: EventLog) -> None:
        self._console = console
        self._log = log
        self._training, self._step = 0, 0

    def write(self, record: Record) -> None:
        """Adds an entry to the log, and tells people if it is a loaded checkpoint."""
        entry = record.entry
        self._log.write(entry)
        self._note(record.training, entry)
        if isinstance(entry, events.CheckpointLoaded):
            unit = entry.unit or "step"
            self._console.line(f"going on from the checkpoint of {unit} {entry.step}")

    def hear(self, notice: Notice) -> None:
        """Notes the step of a notice's entry, unless it is old: notices may be repeated.

        `ToldNotices` writes the entry.
        """
        step = notice.entry and events.step_of(notice.entry)
        if notice.entry and (step or 0) > self.newest_step(notice.training):
            self._note(notice.training, notice.entry)

    def _note(self, training: int, entry: events.WorkerEntry) -> None:
        step = events.step_of(entry)
        if step is not None and training >= self._training:
            self._training, self._step = training, step

    def newest_step(self, training: int) -> int:
        """Returns the exact step of a training; 0 if unknown. Heartbeats lag some steps behind."""
        return self._step if self._training == training else 0
