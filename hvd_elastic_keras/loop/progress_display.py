"""Shows how far a training or evaluation is: drawn by a launcher, as Keras's bar, or as lines."""

from __future__ import annotations

import collections
import contextlib
import io
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import keras
import msgspec

from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.loop.observer import (
    EndedEpoch,
    EvaluatedStep,
    Observer,
    PresentEpoch,
    Round,
    TakenStep,
    TrainedEpoch,
)
from hvd_elastic_keras.observe.console import Screen, formatted_metrics, step_line

LINE_INTERVAL_S = 2.0
PACE_LINES = 10
"""Earlier lines from which the time left is computed, besides the present one.

Single steps differ too much."""
DRAWING_INTERVAL_S = 0.25
"""Interval at which a launcher on a terminal is told of the progress."""


class _Terminal(io.StringIO):
    """Collects what Keras's bar writes for a terminal."""

    def isatty(self) -> bool:
        return True


class Show(Protocol):
    """Shows a text, or the progress that the text describes."""

    def __call__(self, text: str, progress: Progress | None = None) -> None:
        """Takes the formatted text; it may be empty if there is `progress`."""


class _EvaluationTime:
    """How long the evaluation at the end of an epoch takes, with what callbacks do after it.

    Attributes:
      seconds: duration of the newest evaluation within a single round; 0 before the first.
      has_steps: whether the present evaluation has taken any steps.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.has_steps = False
        self._began: float | None = None

    def begin(self, now: float) -> None:
        """Starts the clock: the training steps of an epoch are done."""
        self._began, self.has_steps = now, False

    def forget_beginning(self) -> None:
        """Stops the clock: another round begins, and the time so far has other parts, too."""
        self._began = None

    def end(self, now: float) -> None:
        """Notes the duration: the epoch is over."""
        if self._began is not None and self.has_steps:
            self.seconds = now - self._began
        self._began = None


class ProgressDisplay(Observer):
    """Shows step, loss and metrics, examples per second, workers and time left.

    Args:
      show: shows the output.
      screen: where the output ends up.
      verbose: as in `keras.Model.fit`: 0 shows nothing, 2 a line per epoch, 1 all. A launcher
        is told of the progress in any case, and decides which lines it writes.
      clock: seconds of a steady clock.
    """

    root_only = True

    def __init__(
        self,
        show: Show,
        screen: Screen,
        verbose: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show if verbose else _show_nothing
        self._always_show = show
        self._interactive = screen is Screen.TERMINAL and verbose == 1
        self._drawn = screen is Screen.LAUNCHER
        self._verbose = verbose
        self._steps_too = verbose == 1
        self._clock = clock
        self._bar: keras.utils.Progbar | None = None
        self._epoch = PresentEpoch(0, None, None, 0)
        self._newest: Progress | None = None
        self._drawn_at = self._since = 0.0
        self._pace: collections.deque[tuple[float, int]] = collections.deque(maxlen=PACE_LINES)
        """Seconds and steps of the newest lines with the present number of workers."""
        self._examples = 0
        self._steps = 0
        self._done = 0
        self._evaluation = _EvaluationTime()

    def on_epoch(self, epoch: PresentEpoch) -> None:
        """Starts an epoch, or goes on in the middle of one after a change."""
        self._epoch = epoch
        self._evaluation.forget_beginning()
        self._since, self._examples, self._steps = self._clock(), 0, 0
        if self._interactive:
            if epoch.done == 0:
                self._show(f"Epoch {self._title}\n")
            self._bar = keras.utils.Progbar(epoch.steps, verbose=1, unit_name="step")

    def after_step(self, step: TakenStep) -> None:
        """Notes a finished step and shows it if it is time."""
        if not (self._steps_too or self._drawn):
            return
        done = step.cursor.step + 1
        self._examples += step.num_examples
        self._steps += 1
        if self._interactive:
            self._draw(done, step.result.logs, finalize=False)
            return
        now = self._clock()
        if done == self._epoch.steps or now - self._since >= LINE_INTERVAL_S:
            self._tell(now, step, self._line if self._steps_too else _no_line)
            self._pace.append((now - self._since, self._steps))
            self._since, self._examples, self._steps = now, 0, 0
        elif self._drawn and now - self._drawn_at >= DRAWING_INTERVAL_S:
            self._tell(now, step, _no_line)

    def after_training_phase(self, epoch: TrainedEpoch) -> None:
        """Times the evaluation, which may begin now."""
        self._evaluation.begin(self._clock())

    def after_evaluation_step(self, step: EvaluatedStep) -> None:
        """Notes that the evaluation has begun."""
        self._evaluation.has_steps = True

    def note(self, text: str) -> None:
        """Shows a line between the others."""
        self._show(self._line_of(text))

    def warning(self, text: str) -> None:
        """Shows a warning between the other lines, also if `verbose` is 0."""
        self._always_show(self._line_of(f"warning: {text}"))

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Shows the final values of an epoch."""
        self._evaluation.end(self._clock())
        logs = epoch.shown
        if self._interactive and self._bar is not None:
            self._draw(self._epoch.steps or self._done, logs, finalize=True)
            self._bar = None
        elif self._drawn and self._newest:
            left_s = 0.0 if epoch.is_last else self._newest.left_s
            done = msgspec.structs.replace(
                self._newest, metrics=told_metrics(logs), ended=True, left_s=left_s
            )
            self._always_show(self._last_line(logs) if self._verbose else "", done)
        elif not self._interactive:
            self._show(self._last_line(logs))

    @property
    def _title(self) -> str:
        number, epochs = self._epoch.number + 1, self._epoch.epochs
        return f"{number}/{epochs}" if epochs else f"{number}"

    @property
    def line_break(self) -> str:
        """Text to put before any other line: a line break if Keras's bar is being drawn."""
        return "\n" if self._interactive and self._bar is not None else ""

    def _last_line(self, logs: Mapping[str, Any]) -> str:
        return f"epoch {self._title} done  {formatted_metrics(numbers_of(logs))}\n"

    def _line_of(self, text: str) -> str:
        return f"{self.line_break}{text}\n"

    def _draw(self, done: int, logs: Mapping[str, Any], finalize: bool) -> None:
        if self._bar is None:
            return
        self._done = done
        if finalize:
            self._bar.target = done
        terminal = _Terminal()
        # The metrics are already averages over the epoch so far: the bar must not average again.
        self._bar.stateful_metrics = set(logs)
        with contextlib.redirect_stdout(terminal):
            self._bar.update(done, list(numbers_of(logs).items()), finalize=finalize)
        if terminal.getvalue():
            self._show(terminal.getvalue())

    def _tell(self, now: float, step: TakenStep, line: Callable[[Progress], str]) -> None:
        elapsed = max(now - self._since, 1e-6)
        if self._newest and self._newest.workers != step.place.size:
            self._pace.clear()
        progress = Progress(
            epoch=self._epoch.number + 1,
            epochs=self._epoch.epochs,
            step=step.cursor.step + 1,
            steps=self._epoch.steps,
            metrics=told_metrics(step.result.logs),
            examples_per_s=self._examples / elapsed,
            workers=step.place.size,
            left_s=self._left_s(step, elapsed),
        )
        self._drawn_at, self._newest = now, progress
        self._always_show(line(progress), progress)

    def _left_s(self, step: TakenStep, elapsed: float) -> float | None:
        if step.steps_left is None:
            return None
        evaluations_s = step.evaluations_left * self._evaluation.seconds
        seconds = elapsed + sum(s for s, _ in self._pace)
        steps = self._steps + sum(n for _, n in self._pace)
        return step.steps_left * seconds / max(steps, 1) + evaluations_s

    def _line(self, progress: Progress) -> str:
        return step_line(f"epoch {self._title}", progress)


def numbers_of(logs: Mapping[str, Any]) -> dict[str, float]:
    """Returns the logs that fit in a line, without metrics that have several values."""
    return {name: value for name, value in logs.items() if isinstance(value, int | float)}


def told_metrics(logs: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the numbers of the logs for JSON; None stands for a number that is not finite."""
    numbers = ((n, float(v)) for n, v in numbers_of(logs).items())
    return {name: value if math.isfinite(value) else None for name, value in numbers}


def _show_nothing(_: str, progress: Progress | None = None) -> None:
    return None


def _no_line(_: Progress) -> str:
    return ""


class InferenceDisplay(Observer):
    """Shows steps, metrics so far, examples per second, workers and time left.

    Args:
      show: shows the output.
      what: beginning of the lines, such as "evaluating".
      screen: where the output ends up.
      clock: seconds of a steady clock.
    """

    root_only = True

    def __init__(
        self,
        show: Show,
        what: str,
        screen: Screen = Screen.LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._what = what
        self._drawn = screen is Screen.LAUNCHER
        self._clock = clock
        self._drawn_at = self._since = 0.0
        self._examples = 0
        self._steps = 0

    def on_running(self, entered: Round) -> None:
        """Begins to measure the speed."""
        self._begin()

    def after_evaluation_step(self, step: EvaluatedStep) -> None:
        """Shows the step if it is time, and at the end."""
        self._examples += step.num_examples
        self._steps += 1
        now = self._clock()
        if step.cursor.step + 1 == step.steps or now - self._since >= LINE_INTERVAL_S:
            progress = self._progress(step, now)
            self._show(step_line(self._what, progress), progress)
            self._begin()
        elif self._drawn and now - self._drawn_at >= DRAWING_INTERVAL_S:
            self._show("", self._progress(step, now))

    def _progress(self, step: EvaluatedStep, now: float) -> Progress:
        self._drawn_at = now
        elapsed = max(now - self._since, 1e-6)
        done, left_s = step.cursor.step + 1, None
        if step.steps is not None:
            left_s = (step.steps - done) * elapsed / self._steps
        return Progress(
            what=self._what,
            epoch=1,
            epochs=1,
            step=done,
            steps=step.steps,
            metrics=told_metrics(step.logs),
            examples_per_s=self._examples / elapsed,
            workers=step.place.size,
            left_s=left_s,
        )

    def _begin(self) -> None:
        self._since, self._examples, self._steps = self._clock(), 0, 0
