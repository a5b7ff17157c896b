"""Takes one step of any phase, with what belongs to every step: hooks, position, commit."""

from __future__ import annotations

import contextlib
import time

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.loop import raised_error
from hvd_elastic_keras.loop.loop_parts import LoopParts
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.state.cursor import Phase
from hvd_elastic_keras.step.step_result import Logs, StepResult, python_logs

WORTH_TELLING_S = 0.5
"""A wait for the state of a newcomer is reported only if it is longer than this."""


class StepTaker:
    """Takes the steps of a training, at the state's cursor."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._stepped_at = 0.0

    @property
    def idle_s(self) -> float:
        """Seconds since the newest step; 0 before the first."""
        return time.monotonic() - self._stepped_at if self._stepped_at else 0.0

    def take(self, runner: PhaseRunner, batch: LocalBatch, *, stop: bool = False) -> StepResult:
        """Takes a step together with all workers; see `PartitionedStep`.

        Raises:
          CollectiveFailedError: a peer went away meanwhile; nothing has changed.
        """
        parts, state = self._parts, self._parts.state
        number = state.cursor.number_of_step
        parts.world.begin_part(number)
        with parts.communicator.collective(parts.world.is_computing), self._user_values(runner):
            result = runner.step(batch, number, stop, state.arrive if state.is_late else None)
            state.arrive()  # a step that all agreed not to take has not waited for the state
        if not result.stopped:
            self._stepped_at = time.monotonic()
            parts.callbacks.all_are_as_far()
        self._tell_of_wait()
        return result

    def _tell_of_wait(self) -> None:
        waited_s = self._parts.state.waited_s
        if waited_s > WORTH_TELLING_S:
            step = self._parts.state.cursor.global_step
            self._parts.reporter.tell(
                f"the state of a newcomer came {waited_s:.1f} s after the others had taken step "
                f"{step}: the next one waited for it"
            )
        self._parts.state.waited_s = 0.0

    def _user_values(self, runner: PhaseRunner) -> contextlib.AbstractContextManager[None]:
        """Takes back changes of the user's values if a step fails.

        Does so only if the step calls Python code of the user, because it copies all of these
        values.
        """
        may_change = runner.step.calls_python
        return self._parts.state.user.atomic() if may_change else contextlib.nullcontext()

    def all_raise(self) -> bool:
        """Asks all workers whether callbacks have raised an error on each of them; notes it if so.

        Raises:
          Exception: callbacks of this worker have raised it, and those of others none.
          CollectiveFailedError: callbacks of other workers only have raised one.
        """
        parts, raised = self._parts, self._parts.callbacks.raised
        of_all = raised_error.all_raise(parts.communicator, raised is not None)
        if of_all is None:
            raise raised or CollectiveFailedError("a callback of another worker has failed")
        if of_all and raised is not None:
            parts.state.marks.raised = raised_error.packed(raised)
            parts.course.go_to(parts.state.cursor)
        return bool(of_all)

    def tell_position(self, activity: str) -> None:
        """Tells the master where this worker is."""
        parts, cursor = self._parts, self._parts.state.cursor
        runner = parts.evaluate if cursor.phase is Phase.EVALUATE else parts.train
        reading = None
        if runner is not None and runner.input.from_front:
            reading = runner.position(cursor, parts.session.training)
        parts.reporter.at(activity, cursor.global_step, cursor.progress, reading)

    def begin_batch(self, hook: str) -> None:
        """Calls a hook of callbacks before a step if one is due there, and only once."""
        cursor, marks = self._parts.state.cursor, self._parts.state.marks
        starts = self._parts.schedule.starts_execution(cursor.step)
        if marks.batch_begun != cursor.progress and starts:
            marks.batch_begun = cursor.progress
            self._parts.callbacks.call(hook, cursor.step, {})

    def end_batch(self, hook: str, step: int, steps: int | None, logs: Logs) -> None:
        """Calls a hook of callbacks after step number `step` of `steps` if one is due there."""
        schedule = self._parts.schedule
        if schedule.ends_execution(step) or step + 1 == steps:
            self._parts.callbacks.call(hook, schedule.number_at_end(step), dict(logs))

    def metrics_or(self, logs: Logs) -> Logs:
        """Returns the logs of a finished phase, by Keras's rule `_get_metrics_result_or_logs`."""
        try:
            results = python_logs(self._parts.model.get_metrics_result())
        except ValueError:  # the step has never updated the metrics of `compile`
            return logs
        return {name: results[name] for name in logs} if results.keys() == logs.keys() else logs
