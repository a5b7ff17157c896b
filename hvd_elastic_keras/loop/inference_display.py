"""Shows how far an evaluation or prediction is: drawn by a launcher, or as lines."""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.loop.observer import EvaluatedStep, Observer, Round
from hvd_elastic_keras.loop.progress_display import (
    DRAWING_INTERVAL_S,
    LINE_INTERVAL_S,
    Show,
    told_metrics,
)
from hvd_elastic_keras.observe.console import Screen, step_line


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
