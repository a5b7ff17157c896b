"""Tells people what changes in a training, once for all workers."""

from __future__ import annotations

from hvd_elastic_keras.common.events import WorkerEntry
from hvd_elastic_keras.loop.observer import Observer, Round
from hvd_elastic_keras.loop.progress_display import ProgressDisplay
from hvd_elastic_keras.worker.session import Session


class Announcer(Observer):
    """Shows and records, on rank 0, decisions that all workers have made alike."""

    def __init__(self, session: Session, display: ProgressDisplay) -> None:
        self._session = session
        self._display = display
        self._is_root = False

    def on_round(self, entered: Round) -> None:
        """Notes whether this worker is rank 0."""
        self._is_root = entered.place.rank == 0

    def announce(self, text: str, entry: WorkerEntry) -> None:
        """Adds an entry to the job's event log and shows a line between the progress lines."""
        if self._is_root:
            self._session.record(entry)
            self._display.note(text)
