"""The launcher's output for people: whole lines, on a stream that may be a file or a pipe.

On a terminal, `live_console` draws the progress below the lines. Inside `output.best_effort`,
writing makes nobody wait.

`format_duration` and others format the numbers of a training; `Screen` says where they are shown.
"""

from __future__ import annotations

import contextlib
import enum
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.observe import output

PREFIX = "[elastic]"
WARNING = "warning:"
"""Marks a line that people are to see at any verbosity."""

MINUTE_S = 60


class Verbosity(enum.Enum):
    """How much people want to see."""

    QUIET = "quiet"
    """Warnings, errors, changes of membership and the end."""
    NORMAL = "normal"
    VERBOSE = "verbose"
    """Also the lines of all workers, and lines about the progress even where it is drawn."""


class Console:
    """Writes lines, and text that rank 0 has already formatted.

    Args:
      stream: the stream to write to; None: stdout.
      verbosity: how much people want to see.
    """

    def __init__(
        self, stream: TextIO | None = None, verbosity: Verbosity = Verbosity.NORMAL
    ) -> None:
        self._stream = stream or sys.stdout
        self._verbosity = verbosity
        self._in_line = False

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Draws the progress inside the `with` block; does nothing in this class."""
        yield

    def line(self, text: str) -> None:
        """Writes a line of the launcher, at any verbosity."""
        self._write(f"{self._line_break}{PREFIX} {text}\n")

    def info(self, text: str) -> None:
        """Writes a line of the launcher; a quiet one leaves it out unless it is a warning."""
        if self._says(text):
            self.line(text)

    def worker_line(self, worker_id: str, text: str) -> None:
        """Writes a line that a worker has printed."""
        if self._verbosity is not Verbosity.QUIET:
            self.quote(worker_id, text)

    def quote(self, worker_id: str, text: str) -> None:
        """Writes a line from the log of a worker, at any verbosity."""
        self._write(f"{self._line_break}[{worker_id}] {text}\n")

    def error(self, text: str) -> None:
        """Writes an error to stderr, as command lines do before they have started anything."""
        self._write(self._line_break)
        with contextlib.suppress(OSError, ValueError):
            print(f"error: {text}", file=sys.stderr, flush=True)

    def raw(self, text: str) -> None:
        """Writes text that rank 0 has formatted, as it is."""
        if self._says(text):
            self._write(text)

    def progress(self, progress: Progress, text: str) -> None:
        """Shows the progress of the training; `text` tells the same in a line."""
        self.raw(text)

    def hear(self, time_s: float, entry: events.Entry) -> None:
        """Takes an entry of the job and its time (seconds since 1970); ignored in this class."""

    def end(self) -> None:
        """Waits until everything is written, as long as somebody reads it."""
        output.end()

    @property
    def _line_break(self) -> str:
        return "\n" if self._in_line else ""

    def _says(self, text: str) -> bool:
        return self._verbosity is not Verbosity.QUIET or WARNING in text

    def _write(self, text: str) -> None:
        if not text:
            return
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode("ascii", "replace").decode())
            self._stream.flush()
        except (OSError, ValueError):
            return  # training goes on without it
        self._in_line = not text.endswith("\n")


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> counted(1, "step"), counted(12, "step")
    ('1 step', '12 steps')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of texts, one below the other, in aligned columns.

    >>> print(table([("WORKER", "STEP"), ("w0", "12")]))
    WORKER  STEP
    w0      12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def format_duration(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds.

    >>> format_duration(3725.2), format_duration(59)
    ('1:02:05', '0:59')
    """
    minutes, rest = divmod(round(seconds), MINUTE_S)
    hours, minutes = divmod(minutes, MINUTE_S)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def step_line(what: str, progress: Progress) -> str:
    """Returns the progress as a line that begins with `what`.

    >>> place = {"epoch": 1, "epochs": 2, "step": 3, "steps": 12}
    >>> progress = Progress(**place, metrics={}, examples_per_s=99.6, workers=1, left_s=61)
    >>> step_line("epoch 1/2", progress).rstrip()
    'epoch 1/2  step 3/12  100 examples/s  1 worker  1:01 left'
    """
    step, steps, left_s = progress.step, progress.steps, progress.left_s
    parts = [
        what,
        f"step {step}" if steps is None else f"step {step}/{steps}",
        formatted_metrics(progress.metrics),
        f"{progress.examples_per_s:.0f} examples/s",
        counted(progress.workers, "worker"),
        "" if left_s is None else f"{format_duration(left_s)} left",
    ]
    return "  ".join(filter(None, parts)) + "\n"


def formatted_metrics(metrics: Mapping[str, float | None]) -> str:
    """Returns names and values: the loss, then the others by name, then those of validation alike.

    None means "not a number".

    >>> formatted_metrics({"loss": None, "accuracy": 0.25, "val_accuracy": 0.2, "val_loss": 1.5})
    'loss nan  accuracy 0.2500  val_loss 1.5000  val_accuracy 0.2000'
    """
    numbers = {n: math.nan if v is None else v for n, v in metrics.items()}
    ordered = sorted(
        numbers, key=lambda n: (n.startswith("val_"), n.removeprefix("val_") != "loss", n)
    )
    return "  ".join(f"{name} {numbers[name]:.4f}" for name in ordered)


class Screen(enum.Enum):
    """The kinds of places, which differ in what they can show."""

    LINES = "lines"
    """A file or a pipe of this process, which trains alone."""
    TERMINAL = "terminal"
    """The terminal of this process, which trains alone."""
    LAUNCHER = "launcher"
    """The output of the launcher, which draws the progress itself or writes lines about it."""
