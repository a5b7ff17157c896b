"""Tells the master twice a second how fast a job goes that does not train step by step.

Such a job evaluates, predicts, or runs the user's own loop (`elastic.run`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_elastic_keras.common.events import StepsTaken
from hvd_elastic_keras.common.protocol import COMMIT
from hvd_elastic_keras.loop.observer import EvaluatedStep, Observer, Round
from hvd_elastic_keras.loop.step_records import INTERVAL_S, finite_numbers
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.worker.reporter import Reporter


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
