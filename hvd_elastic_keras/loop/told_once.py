"""Notices that rank 0 shows to people when the training begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hvd_elastic_keras.loop.observer import Observer, Round
from hvd_elastic_keras.observe.notices import Notice
from hvd_elastic_keras.worker.session import Session


class ToldOnce(Observer):
    """Tells notices in the first round in which this worker is rank 0.

    Each worker has its own notices, which are mostly the same. `Session.tell` shows each of them
    once per training.

    Args:
      notices: notices known before the first round.
      what_is_lost: returns a warning of state that other workers cannot get, mostly empty. Called
        only on a worker whose state is new or from a checkpoint.
    """

    root_only = True

    def __init__(
        self, session: Session, notices: Iterable[Notice], what_is_lost: Callable[[], str]
    ) -> None:
        self._session = session
        self._notices = list(notices)
        self._what_is_lost = what_is_lost

    def on_running(self, entered: Round) -> None:
        """Tells the notices that have not been told."""
        lost = self._what_is_lost() if entered.takes_up and entered.place.rendezvous else ""
        if lost:
            self._notices.append(Notice(f"warning: {lost}"))
        for notice in self._notices:
            self._session.tell(notice.text, notice.entry)
        self._notices.clear()
