"""Lines that one worker shows to people for all: at the start of the training, and for changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hvd_elastic_keras.common.events import WorkerEntry
from hvd_elastic_keras.loop.observer import Observer, Round
from hvd_elastic_keras.loop.progress_display import ProgressDisplay
from hvd_elastic_keras.observe.notices import Notice, notices
from hvd_elastic_keras.worker.reporter import Reporter


class StartNotices(Observer):
    """Tells notices in the first round in which this worker is rank 0.

    Each worker has its own notices, which are mostly the same. `Reporter.tell` shows each of them
    once per training.

    Args:
      known: notices known before the first round.
      unsendable_warning: returns a warning of state that other workers cannot get, mostly empty.
        Called only on a worker whose state is new or from a checkpoint. It is told once, and not
        again in each `fit` of a script.
    """

    root_only = True

    def __init__(
        self, reporter: Reporter, known: Iterable[Notice], unsendable_warning: Callable[[], str]
    ) -> None:
        self._reporter = reporter
        self._notices = list(known)
        self._unsendable_warning = unsendable_warning

    def on_running(self, entered: Round) -> None:
        """Tells the notices that have not been told."""
        lost = (
            self._unsendable_warning() if entered.starts_state and entered.place.rendezvous else ""
        )
        if lost:
            self._notices += [Notice(text) for text in notices.untold([f"warning: {lost}"])]
        for notice in self._notices:
            self._reporter.tell(notice.text, notice.entry)
        self._notices.clear()


class Announcer(Observer):
    """Shows and records, on rank 0, decisions that all workers have made alike."""

    def __init__(self, reporter: Reporter, display: ProgressDisplay) -> None:
        self._reporter = reporter
        self._display = display
        self._is_root = False

    def on_round(self, entered: Round) -> None:
        """Notes whether this worker is rank 0."""
        self._is_root = entered.place.rank == 0

    def announce(self, text: str, entry: WorkerEntry) -> None:
        """Adds an entry to the job's event log and shows a line between the progress lines."""
        if self._is_root:
            self._reporter.record(entry)
            self._display.note(text)
