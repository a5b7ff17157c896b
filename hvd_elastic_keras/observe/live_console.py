"""The launcher's terminal: lines that scroll, and below them the job's progress, drawn in place.

`rich` draws (https://rich.readthedocs.io/en/stable/live.html), and respects `NO_COLOR`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.job_spec import TRAIN
from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.observe import output
from hvd_elastic_keras.observe.console import PREFIX, WARNING, Console, Verbosity
from hvd_elastic_keras.observe.live_region import LiveRegion

DRAWINGS_PER_S = 4
ECHO = 2
"""Columns that stay free: a terminal shows Ctrl-C as ^C there, which must not begin a line."""
EPOCH_LINES_S = 10.0
"""Seconds between two lines with the values of an epoch. The newest values are always drawn."""


class _Terminal(RichConsole):
    """Never hides the cursor: a process that is killed cannot show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _Stream:
    """A terminal that may go away, while the training goes on."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if not output.is_gone(self.stream):  # otherwise there is a file: nothing is drawn on it
            with contextlib.suppress(OSError, ValueError):
                return self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Live(Live):
    """Draws nothing while a terminal is stopped: it would show all of the drawings later."""

    def refresh(self) -> None:
        file: Any = self.console.file
        if not output.is_behind(file.stream):
            super().refresh()


class LiveConsole(Console):
    """Draws the progress on a terminal, and writes lines above it.

    Args:
      stream: the terminal.
      verbosity: how much people want to see.
      job: what the job does; see `LiveRegion`.
    """

    def __init__(self, stream: TextIO, verbosity: Verbosity, job: str = TRAIN) -> None:
        super().__init__(stream, verbosity)
        file: Any = _Stream(stream)
        self._terminal = _Terminal(file=file, force_terminal=True, highlight=False, markup=False)
        self._region = LiveRegion(time.time(), job)
        self._epoch_line_at = 0.0

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Draws the progress inside the `with` block. Afterwards nothing of it is left."""
        live = _Live(
            console=self._terminal,
            get_renderable=self._picture,
            refresh_per_second=DRAWINGS_PER_S,
            transient=True,
            redirect_stdout=False,
            # Drawing must not cover what others write to the terminal. A file needs no redirection.
            redirect_stderr=sys.stderr.isatty(),
        )
        with live:
            yield

    def progress(self, progress: Progress, text: str) -> None:
        """Draws how far the training is."""
        self._region.take(progress)
        all_lines = self._verbosity is Verbosity.VERBOSE or output.is_gone(self._stream)
        if all_lines or (progress.ended and self._is_due(progress)):
            self.raw(text)

    def _is_due(self, progress: Progress) -> bool:
        """Whether the end of an epoch gets a line; the end of the last epoch always does."""
        now = time.monotonic()
        if progress.epoch != progress.epochs and now - self._epoch_line_at < EPOCH_LINES_S:
            return False
        self._epoch_line_at = now
        return True

    def hear(self, time_s: float, entry: events.Entry) -> None:
        """Takes an entry of the job and the time when it was written (seconds since 1970)."""
        self._region.hear(time_s, entry)

    def _picture(self) -> RenderableType:
        return self._region.picture(max(1, self._terminal.width - ECHO), time.time())

    def _write(self, text: str) -> None:
        if output.is_gone(self._stream):
            super()._write(text)
            return
        for line in text.splitlines():
            # The line may have any length, so that it can be copied: the terminal wraps it.
            self._terminal.print(_styled(line), soft_wrap=True)


def _styled(line: str) -> Text:
    """Keeps the colours that a worker has given the line, and no other terminal commands."""
    text = Text.from_ansi(line)
    if line.startswith(f"{PREFIX} "):
        text.stylize("dim", 0, len(PREFIX))
    if WARNING in line:
        text.stylize("yellow")
    return text


def console_for(verbosity: Verbosity, job: str = TRAIN) -> Console:
    """Returns the console of this process, which draws if stdout is a terminal that can.

    Args:
      job: what the job does; see `LiveRegion`.
    """
    stream = sys.stdout
    encoding = (stream.encoding or "").lower().replace("-", "")
    can_draw = stream.isatty() and encoding == "utf8" and not RichConsole().is_dumb_terminal
    if verbosity is Verbosity.QUIET or not can_draw:
        return Console(stream, verbosity)
    return LiveConsole(stream, verbosity, job)
