"""Records the course of a job: its steps and epochs, or its speed if it has no training steps.

A job without training steps evaluates, predicts, or runs the user's own loop (`elastic.run`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hvd_elastic_keras.common.events import EpochEnd, StepsTaken
from hvd_elastic_keras.common.protocol import COMMIT
from hvd_elastic_keras.loop.observer import (
    EndedEpoch,
    EvaluatedStep,
    Observer,
    PresentEpoch,
    Round,
    TakenStep,
    TrainedEpoch,
)
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.step.step_result import Logs
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


MOST_NUMBERS = 1000
"""Size of the largest array in an entry. The log is read as a whole, and messages have a limit."""


class EpochRecords(Observer):
    """Records each end of an epoch with its logs.

    Rank 0 may be lost before its message is sent: the next rank 0 sends the newest end again.

    Args:
      audited: whether the epochs have a ledger.
    """

    def __init__(self, reporter: Reporter, *, audited: bool) -> None:
        self._reporter = reporter
        self._audited = audited
        self._is_root = False
        self._newest: EpochEnd | None = None

    def on_round(self, entered: Round) -> None:
        """Sends the newest end again if the former rank 0 may not have sent it."""
        was_root, self._is_root = self._is_root, entered.place.rank == 0
        if self._is_root and not was_root and self._newest:
            self._reporter.tell("", self._newest)

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Records the end of an epoch."""
        self._newest = EpochEnd(
            epoch=epoch.cursor.epoch,
            step=epoch.cursor.global_step,
            metrics=plain(epoch.logs),
            audited=self._audited,
        )
        if self._is_root:
            self._reporter.tell("", self._newest)


def plain(logs: Logs) -> dict[str, Any]:
    """Returns logs as JSON values: small arrays as lists, large arrays as a summary.

    >>> plain({"loss": 0.5, "of_classes": np.array([1.0, 0.0])})
    {'loss': 0.5, 'of_classes': [1.0, 0.0]}
    >>> plain({"confusion": np.eye(100)})
    {'confusion': {'shape': [100, 100], 'mean': 0.01, 'min': 0.0, 'max': 1.0}}
    """
    return {name: _plain(value) for name, value in logs.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    array = np.asarray(value)
    if array.size <= MOST_NUMBERS or array.dtype.kind not in "biuf":
        return array.tolist()
    found = {"mean": array.mean(), "min": array.min(), "max": array.max()}
    return {"shape": list(array.shape), **{name: float(v) for name, v in found.items()}}


class InferenceRecords(Observer):
    """Records, on rank 0, the speed of each interval, and the metrics of the evaluation so far.

    Args:
      training: number of the training.
      clock: seconds of a steady clock.
    """

    root_only = True

    def __init__(
        self,
        reporter: Reporter,
        training: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter = reporter
        self._training = training
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock()
        self._steps = self._examples = 0
        self._newest: EvaluatedStep | None = None

    def on_running(self, entered: Round) -> None:
        """Begins an interval."""
        self._begin()

    def after_evaluation_step(self, step: EvaluatedStep) -> None:
        """Counts a step, and records if it is time."""
        self._newest = step
        self._steps += 1
        self._examples += step.num_examples
        if self._clock() - self._since >= INTERVAL_S:
            self._record(step)

    def at_end_of_phase(self, cursor: Cursor) -> None:
        """Records the last steps: a short job has no other record."""
        if self._newest is not None:
            self._record(self._newest)

    def _record(self, step: EvaluatedStep) -> None:
        passed_s = max(self._clock() - self._since, 1e-6)
        self._reporter.record(
            StepsTaken(
                training=self._training,
                epoch=None,
                step=step.cursor.step + 1,
                metrics=finite_numbers(step.logs),
                examples_per_s=round(self._examples / passed_s, 3),
                step_s=round(passed_s / self._steps, 6),
            )
        )
        self._begin()


class CommitRecords:
    """Records the commits of the user's own loop. The examples of a commit are unknown.

    The time before the first commit of a round does not count: data may be loaded there.

    Args:
      training: number of the training.
      clock: seconds of a steady clock.
    """

    def __init__(
        self,
        reporter: Reporter,
        training: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reporter = reporter
        self._training = training
        self._clock = clock
        self._since: float | None = None
        self._commits = self._newest = 0
        self._of_fit = False

    def begin_round(self) -> None:
        """Starts anew: the next commit is the first of a round."""
        self._since, self._commits = None, 0

    def after_commit(self, num_commits: int) -> None:
        """Counts a commit, and records if it is time. Called on rank 0.

        Args:
          num_commits: number of commits in all, including this one.
        """
        if self._of_fit:
            return
        if self._since is None:
            self._since = self._clock()
            return
        self._commits, self._newest = self._commits + 1, num_commits
        if self._clock() - self._since >= INTERVAL_S:
            self._record(self._since)

    def end(self) -> None:
        """Records the last commits when the function has returned. Called on rank 0."""
        if self._since is not None and self._commits:
            self._record(self._since)

    def leave_to_fit(self) -> None:
        """Stops recording: `fit` trains inside the function, and records its own steps."""
        self._of_fit = True
        self.begin_round()

    def _record(self, since: float) -> None:
        passed_s = max(self._clock() - since, 1e-6)
        self._reporter.record(
            StepsTaken(
                training=self._training,
                epoch=None,
                step=self._newest,
                unit=COMMIT,
                metrics={},
                examples_per_s=None,
                step_s=round(passed_s / self._commits, 6),
            )
        )
        self._since, self._commits = self._clock(), 0
