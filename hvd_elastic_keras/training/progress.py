"""The progress display of rank 0: Keras's bar on a terminal, a line per interval elsewhere."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Mapping

import keras

LINE_INTERVAL_S = 2.0
MINUTE_S = 60


class _Terminal(io.StringIO):
    """Collects what Keras's bar writes for a terminal."""

    def isatty(self) -> bool:
        return True


class ProgressDisplay:
    """Shows step, loss and metrics, examples per second, workers and time left.

    Args:
      show: takes the formatted text.
      interactive: whether the text ends up on a terminal that can redraw a line.
      clock: seconds of a steady clock.
    """

    def __init__(
        self,
        show: Callable[[str], None],
        interactive: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._interactive = interactive
        self._clock = clock
        self._bar: keras.utils.Progbar | None = None
        self._title = ""
        self._of = 0
        self._since = 0.0
        self._examples = 0
        self._steps = 0

    def begin_epoch(self, epoch: int, epochs: int | None, steps: int, first_step: int) -> None:
        """Starts an epoch, or goes on in the middle of one after a change."""
        title = f"{epoch + 1}/{epochs}" if epochs else f"{epoch + 1}"
        self._title = title
        self._of = steps
        self._since, self._examples, self._steps = self._clock(), 0, 0
        if self._interactive:
            if first_step == 0:
                self._show(f"Epoch {title}\n")
            self._bar = keras.utils.Progbar(steps, verbose=1, unit_name="step")

    def step(
        self, done: int, logs: Mapping[str, float], examples: int, workers: int, steps_left: int
    ) -> None:
        """Notes a finished step and shows it if it is time."""
        self._examples += examples
        self._steps += 1
        if self._interactive:
            self._draw(done, logs, finalize=False)
        elif done == self._of or self._clock() - self._since >= LINE_INTERVAL_S:
            self._line(done, logs, workers, steps_left)

    def end_epoch(self, logs: Mapping[str, float]) -> None:
        """Shows the final values of an epoch."""
        if self._interactive and self._bar is not None:
            self._draw(self._of, logs, finalize=True)
            self._bar = None
        elif not self._interactive:
            values = "  ".join(f"{name} {value:.4f}" for name, value in sorted(logs.items()))
            self._show(f"epoch {self._title} done  {values}\n")

    def _draw(self, done: int, logs: Mapping[str, float], finalize: bool) -> None:
        if self._bar is None:
            return
        terminal = _Terminal()
        # The metrics are those of the epoch so far already: no further averaging.
        self._bar.stateful_metrics = set(logs)
        with contextlib.redirect_stdout(terminal):
            self._bar.update(done, list(logs.items()), finalize=finalize)
        if terminal.getvalue():
            self._show(terminal.getvalue())

    def _line(self, done: int, logs: Mapping[str, float], workers: int, steps_left: int) -> None:
        now = self._clock()
        elapsed = max(now - self._since, 1e-6)
        values = "  ".join(f"{name} {value:.4f}" for name, value in sorted(logs.items()))
        left = steps_left * elapsed / max(self._steps, 1)
        plural = "" if workers == 1 else "s"
        self._show(
            f"epoch {self._title}  step {done}/{self._of}  {values}  "
            f"{self._examples / elapsed:.0f} examples/s  {workers} worker{plural}  "
            f"{format_duration(left)} left\n"
        )
        self._since, self._examples, self._steps = now, 0, 0


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> format_duration(3725.2), format_duration(59)
    ('1:02:05', '0:59')
    """
    minutes, rest = divmod(round(seconds), MINUTE_S)
    hours, minutes = divmod(minutes, MINUTE_S)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
