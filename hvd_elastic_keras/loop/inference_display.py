"""What people see of a job that evaluates or predicts: a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_elastic_keras.loop.observer import EvaluatedStep, Observer, Round
from hvd_elastic_keras.loop.progress_display import LINE_INTERVAL_S, numbers_of
from hvd_elastic_keras.observe.progress_text import step_line


class InferenceDisplay(Observer):
    """Shows steps, metrics so far, examples per second, workers and time left.

    Args:
      show: takes the formatted text.
      what: the lines begin with it, such as "evaluating".
      clock: seconds of a steady clock.
    """

    root_only = True

    def __init__(
        self,
        show: Callable[[str], None],
        what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._what = what
        self._clock = clock
        self._since = 0.0
        self._examples = 0
        self._steps = 0

    def on_running(self, entered: Round) -> None:
        """Speed is measured from here."""
        self._begin()

    def after_evaluation_step(self, step: EvaluatedStep) -> None:
        """Shows a line if it is time, and at the end."""
        self._examples += step.num_examples
        self._steps += 1
        done = step.cursor.step + 1
        elapsed = self._clock() - self._since
        if done != step.steps and elapsed < LINE_INTERVAL_S:
            return
        left_s = None
        if step.steps is not None:
            left_s = (step.steps - done) * elapsed / self._steps
        line = step_line(
            self._what,
            done,
            step.steps,
            numbers_of(step.logs),
            examples_per_s=self._examples / max(elapsed, 1e-6),
            workers=step.place.size,
            left_s=left_s,
        )
        self._show(line)
        self._begin()

    def _begin(self) -> None:
        self._since, self._examples, self._steps = self._clock(), 0, 0
