"""The progress display of rank 0: Keras's bar on a terminal, a line per interval elsewhere."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from hvd_elastic_keras.loop.observer import EndedEpoch, Observer, PresentEpoch, TakenStep

LINE_INTERVAL_S = 2.0
MINUTE_S = 60


class _Terminal(io.StringIO):
    """Collects what Keras's bar writes for a terminal."""

    def isatty(self) -> bool:
        return True


class ProgressDisplay(Observer):
    """Shows step, loss and metrics, examples per second, workers and time left.

    Args:
      show: takes the formatted text.
      interactive: whether the text ends up on a terminal that can redraw a line.
      verbose: as in `keras.Model.fit`: 0 shows nothing, 2 a line per epoch, 1 all.
      clock: seconds of a steady clock.
    """

    root_only = True

    def __init__(
        self,
        show: Callable[[str], None],
        interactive: bool,
        verbose: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show if verbose else _show_nothing
        self._always_show = show
        self._interactive = interactive and verbose == 1
        self._steps_too = verbose == 1
        self._clock = clock
        self._bar: keras.utils.Progbar | None = None
        self._title = ""
        self._of: int | None = None
        self._since = 0.0
        self._examples = 0
        self._steps = 0
        self._done = 0

    def on_epoch(self, epoch: PresentEpoch) -> None:
        """Starts an epoch, or goes on in the middle of one after a change."""
        number = epoch.number + 1
        self._title = title = f"{number}/{epoch.epochs}" if epoch.epochs else f"{number}"
        self._of = epoch.steps
        self._since, self._examples, self._steps = self._clock(), 0, 0
        if self._interactive:
            if epoch.done == 0:
                self._show(f"Epoch {title}\n")
            self._bar = keras.utils.Progbar(epoch.steps, verbose=1, unit_name="step")

    def after_step(self, step: TakenStep) -> None:
        """Notes a finished step and shows it if it is time."""
        if not self._steps_too:
            return
        done = step.cursor.step + 1
        self._examples += step.num_examples
        self._steps += 1
        if self._interactive:
            self._draw(done, step.result.logs, finalize=False)
        elif done == self._of or self._clock() - self._since >= LINE_INTERVAL_S:
            self._line(done, step.result.logs, step.place.size, step.steps_left)

    def note(self, text: str) -> None:
        """Shows a line between the others."""
        self._show(self._line_of(text))

    def warning(self, text: str) -> None:
        """As `note`, also to those who want to see nothing else."""
        self._always_show(self._line_of(f"warning: {text}"))

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Shows the final values of an epoch."""
        logs = epoch.logs
        if self._interactive and self._bar is not None:
            self._draw(self._of or self._done, logs, finalize=True)
            self._bar = None
        elif not self._interactive:
            self._show(f"epoch {self._title} done  {formatted(logs)}\n")

    @property
    def line_break(self) -> str:
        """What has to stand before a line of somebody else."""
        return "\n" if self._interactive and self._bar is not None else ""

    def _line_of(self, text: str) -> str:
        return f"{self.line_break}{text}\n"

    def _draw(self, done: int, logs: Mapping[str, Any], finalize: bool) -> None:
        if self._bar is None:
            return
        self._done = done
        if finalize:
            self._bar.target = done
        terminal = _Terminal()
        # The metrics are those of the epoch so far already: no further averaging.
        self._bar.stateful_metrics = set(logs)
        with contextlib.redirect_stdout(terminal):
            self._bar.update(done, list(_numbers(logs).items()), finalize=finalize)
        if terminal.getvalue():
            self._show(terminal.getvalue())

    def _line(
        self, done: int, logs: Mapping[str, Any], workers: int, steps_left: int | None
    ) -> None:
        now = self._clock()
        elapsed = max(now - self._since, 1e-6)
        of = "" if self._of is None else f"/{self._of}"
        left = ""
        if steps_left is not None:
            left = f"  {format_duration(steps_left * elapsed / max(self._steps, 1))} left"
        plural = "" if workers == 1 else "s"
        self._show(
            f"epoch {self._title}  step {done}{of}  {formatted(logs)}  "
            f"{self._examples / elapsed:.0f} examples/s  {workers} worker{plural}{left}\n"
        )
        self._since, self._examples, self._steps = now, 0, 0


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """What can be shown in a line: metrics with several values are left out."""
    return {name: value for name, value in logs.items() if isinstance(value, int | float)}


def formatted(logs: Mapping[str, Any]) -> str:
    """Loss and metrics in a line, by name."""
    return "  ".join(f"{name} {value:.4f}" for name, value in sorted(_numbers(logs).items()))


def _show_nothing(_: str) -> None:
    return None


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> format_duration(3725.2), format_duration(59)
    ('1:02:05', '0:59')
    """
    minutes, rest = divmod(round(seconds), MINUTE_S)
    hours, minutes = divmod(minutes, MINUTE_S)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
