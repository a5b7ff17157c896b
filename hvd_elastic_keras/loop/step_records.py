"""Tells the master twice a second how the training goes: loss, metrics, speed.

`other_records` does the same for jobs that do not train step by step.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvd_elastic_keras.common.events import StepsTaken
from hvd_elastic_keras.loop.observer import Observer, PresentEpoch, Round, TakenStep, TrainedEpoch
from hvd_elastic_keras.step.world import StepSeconds
from hvd_elastic_keras.worker.reporter import Reporter

INTERVAL_S = 0.5


class StepRecords(Observer):
    """Records, on rank 0, the loss, metrics and speed of the steps of each interval.

    The time between two epochs or two rounds does not count. An interval may span several epochs.

    Args:
      waited_s: returns how long this worker waited for the examples of its newest step.
      seconds: returns how long that step computed and how long it waited for the sums of all
        workers; None if it was not timed.
      learning_rate: returns the present learning rate; None if there is none.
      training: number of the training.
      clock: seconds of a steady clock.
    """

    root_only = True

    def __init__(
        self,
        reporter: Reporter,
        training: int,
        *,
        waited_s: Callable[[], float],
        learning_rate: Callable[[], float | None],
        seconds: Callable[[], StepSeconds | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter = reporter
        self._training = training
        self._waited_s = waited_s
        self._learning_rate = learning_rate
        self._epochs: int | None = None
        self._seconds = seconds
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock()
        self._before_s = 0.0
        """Time of this interval in earlier epochs."""
        self._input_s = 0.0
        self._steps = self._examples = 0
        self._timed: list[StepSeconds] = []
        self._parts: list[float] = []
        """By rank, seconds spent on its parts of the steps of this interval."""

    def on_running(self, entered: Round) -> None:
        """Begins an interval."""
        self._begin()

    def after_training_phase(self, epoch: TrainedEpoch) -> None:
        """Stops the clock of the interval: no training steps follow for now."""
        self._before_s += self._clock() - self._since

    def on_epoch(self, epoch: PresentEpoch) -> None:
        """Restarts the clock of the interval: training steps follow."""
        self._since = self._clock()
        self._epochs = epoch.epochs

    def after_step(self, step: TakenStep) -> None:
        """Counts a step, and records if it is time."""
        self._steps += 1
        self._examples += step.num_examples
        self._input_s += self._waited_s()
        self._timed += [timed] if (timed := self._seconds()) else []
        parts = _seconds_of_parts(step)
        before = self._parts or [0.0] * len(parts)
        self._parts = [a + b for a, b in zip(before, parts, strict=False)]
        passed_s = self._before_s + self._clock() - self._since
        if passed_s >= INTERVAL_S:
            self._reporter.record(self._entry(step, passed_s))
            self._begin()

    def _entry(self, step: TakenStep, passed_s: float) -> StepsTaken:
        return StepsTaken(
            training=self._training,
            epoch=step.cursor.epoch,
            step=step.cursor.global_step + 1,
            metrics=finite_numbers(step.result.logs),
            examples_per_s=round(self._examples / passed_s, 3),
            step_s=round(passed_s / self._steps, 6),
            part_s=[round(seconds / self._steps, 6) for seconds in self._parts],
            input_s=round(self._input_s / self._steps, 6),
            compute_s=_mean([timed.compute for timed in self._timed]),
            allreduce_s=_mean([timed.allreduce for timed in self._timed]),
            learning_rate=self._learning_rate(),
            epochs=self._epochs,
            steps_left=step.steps_left,
        )


def _mean(seconds: Sequence[float]) -> float | None:
    return round(statistics.fmean(seconds), 6) if seconds else None


def _seconds_of_parts(step: TakenStep) -> list[float]:
    """Returns, by rank, the seconds for its part of the step; empty if they are not measured."""
    whole = max(1, sum(step.shares))
    return [
        seconds * step.num_examples * share / whole
        for seconds, share in zip(step.result.seconds, step.shares, strict=False)
    ]


def finite_numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Returns the logs that a curve can show: finite numbers.

    >>> finite_numbers({"loss": 0.5, "precision": float("nan"), "of_classes": [1.0, 0.0]})
    {'loss': 0.5}
    """
    numbers = {n: float(v) for n, v in logs.items() if isinstance(v, int | float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
