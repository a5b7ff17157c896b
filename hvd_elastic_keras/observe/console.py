"""The launcher's terminal: whole lines, and the text that rank 0 redraws in place."""

from __future__ import annotations

import sys
from typing import TextIO

PREFIX = "[elastic]"


class Console:
    """Writes lines without breaking a progress bar that is being drawn."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._in_line = False

    @property
    def interactive(self) -> bool:
        """Whether lines can be redrawn."""
        return self._stream.isatty()

    def line(self, text: str) -> None:
        """Writes a line of the launcher."""
        self._write(("\n" if self._in_line else "") + f"{PREFIX} {text}\n")

    def worker_line(self, worker_id: str, text: str) -> None:
        """Writes a line that a worker has printed."""
        self._write(("\n" if self._in_line else "") + f"[{worker_id}] {text}\n")

    def error(self, text: str) -> None:
        """Writes an error to stderr, as command lines do before they have started anything."""
        self._write("\n" if self._in_line else "")
        print(f"error: {text}", file=sys.stderr)

    def raw(self, text: str) -> None:
        """Writes text of a progress display as it is."""
        self._write(text)

    def _write(self, text: str) -> None:
        if not text:
            return
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode("ascii", "replace").decode())
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            # The reader of our output is gone (`| head`): training goes on without it.
            return
        self._in_line = not text.endswith("\n")


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "step"), counted(12, "step")
    ('1 step', '12 steps')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
