"""Writes checkpoints in a thread, so that the training waits at most for a copy in memory."""

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
        """Waits for the write before, then begins to write.

        Raises:
          Exception: the error with which the write before has ended.
        """
        self.wait()
        self._outcome = Future()
        self._thread = threading.Thread(target=self._run, args=(write,), name="elastic-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when the present write is on disk.

        Raises:
          Exception: the error with which the write has ended; raised only once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._outcome.result()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # `wait` raises it
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(None)
