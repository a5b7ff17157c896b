"""Kills a launcher as soon as its journal has grown past some length."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

from hvd_elastic_keras.chaos.victims import Victim
from hvd_elastic_keras.common import files

LOOK_S = 0.0005
"""Shorter than the sync of a line to disk: the effects of the line are not published yet."""


class JournalWatch:
    """Watches a launcher's journal in a thread, and kills the launcher. Close it after use.

    Args:
      past_bytes: the launcher is killed when its journal is longer than this.
      not_of: the journal (its inode) of a launcher that is killed already; 0 if there is none.
      launcher: returns the launcher's process; None if it is not there.
    """

    def __init__(
        self, job_dir: Path, past_bytes: int, not_of: int, launcher: Callable[[], Victim | None]
    ) -> None:
        self._journal = job_dir / files.JOURNAL
        self._past_bytes = past_bytes
        self._not_of = not_of
        self._launcher = launcher
        self._over = threading.Event()
        self.killed: tuple[int, int] | None = None
        """The journal (its inode) and its length, once the launcher is killed or is about to be."""
        self._thread = threading.Thread(target=self._work, name="journal-watch", daemon=True)
        self._thread.start()

    def length(self) -> int:
        """Returns the length of the present launcher's journal."""
        return self._look()[1]

    def close(self) -> None:
        """Ends the watch. No launcher is killed from now on."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(LOOK_S):
            journal, length = self._look()
            if length > self._past_bytes and (victim := self._launcher()):
                self.killed = journal, length  # first: whoever sees it gone must know why
                victim.send(signal.SIGKILL)
                victim.close()
                return

    def _look(self) -> tuple[int, int]:
        try:
            found = self._journal.stat()
        except FileNotFoundError:
            return 0, 0
        return (0, 0) if found.st_ino == self._not_of else (found.st_ino, found.st_size)
