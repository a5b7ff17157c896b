"""Results of an evaluation or prediction, which rank 0 writes when all steps are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_elastic_keras.loop.observer import Observer


class Results(Observer):
    """Writes the results, and shows a line about them once for all workers.

    Args:
      write: writes the results and returns a line for people. A rank 0 that takes over at the end
        writes the same again.
      tell: shows a line once per job.
    """

    root_only = True

    def __init__(self, write: Callable[[], str], tell: Callable[[str], Any]) -> None:
        self._write = write
        self._tell = tell

    def on_end(self) -> None:
        """Writes the results."""
        self._tell(self._write())
