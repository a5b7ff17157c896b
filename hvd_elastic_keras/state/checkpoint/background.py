"""Writes checkpoints in a thread: the training waits for a copy in memory at most."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


class BackgroundWriter:
    """Does one thing at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._outcome: Future[None] = Future()

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None]) -> None:
        """Begins to write; what was begun before is on disk by then.

        Raises:
          Exception: that with which it has ended.
        """
        self.wait()
        self._outcome = Future()
        self._thread = threading.Thread(target=self._run, args=(write,), name="elastic-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when what is being written is on disk.

        Raises:
          Exception: that with which it has ended, once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._outcome.result()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # for whoever waits
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)
