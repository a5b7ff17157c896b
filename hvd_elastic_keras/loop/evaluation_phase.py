"""The evaluation of an epoch, in one round, and the end of the epoch."""

from __future__ import annotations

from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.input.interfaces import LocalBatch, Moment
from hvd_elastic_keras.loop.end_of_data import LastBatch, data_have_ended, end_of_data
from hvd_elastic_keras.loop.loop_parts import LoopParts
from hvd_elastic_keras.loop.observer import EndedEpoch, EvaluatedStep
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.step_taker import StepTaker
from hvd_elastic_keras.step.step_result import Logs


class EvaluationPhase:
    """Takes the steps of an evaluation, if one is due, and ends the epoch."""

    def __init__(self, parts: LoopParts, steps: StepTaker, place: Assignment) -> None:
        self._parts = parts
        self._state = parts.state
        self._steps = steps
        self._place = place

    def run(self) -> bool:
        """Evaluates if that is due, and ends the epoch. Returns whether the round ends first."""
        runner = self._parts.evaluate
        if runner is None or not self._parts.schedule.evaluates_after(self._state.cursor.epoch):
            self._end_epoch({})
            return False
        if self._evaluate(runner):
            return True
        logs = self._steps.metrics_or(self._state.evaluation_logs)
        self._parts.callbacks.call("on_test_end", dict(logs))
        self._end_epoch({f"val_{name}": value for name, value in logs.items()})
        return False

    def _evaluate(self, runner: PhaseRunner) -> bool:
        state, marks = self._state, self._state.marks
        cursor = state.cursor
        data = self._parts.train.input
        if marks.stop_agreed:  # the data of a worker that joined meanwhile do not know it yet
            data.stop(cursor.epoch)
        data.come_to(cursor.epoch, Moment.EVALUATION_COMES)
        if marks.evaluation_begun != cursor.epoch:
            marks.evaluation_begun = cursor.epoch
            self._parts.callbacks.call("on_test_begin", {})
            self._parts.model.reset_metrics()
        data.come_to(cursor.epoch, Moment.EVALUATION_BEGINS)
        steps = runner.input.steps(cursor.epoch)
        batch: LocalBatch | None = None
        for batch in runner.batches(cursor, self._place.rank, self._parts.shares.balance):
            cursor = state.cursor
            self._steps.tell_position("evaluating")
            self._steps.begin_batch("on_test_batch_begin")
            result = self._steps.take(runner, batch)
            if result.stopped:
                data_have_ended(runner, self._parts.communicator, cursor)
            state.cursor = cursor.after_step()
            state.evaluation_logs = result.logs
            self._steps.end_batch("on_test_batch_end", cursor.step, steps, result.logs)
            count = batch.part.num_examples_of_step
            taken = EvaluatedStep(cursor, self._place, count, steps, result.logs)
            for observer in self._parts.observers:
                observer.after_evaluation_step(taken)
            if result.change_pending:
                return True
        if steps is None or state.cursor.step < steps:
            last = LastBatch(batch, runner.share(self._place.rank, self._parts.shares.balance))
            end_of_data(runner, self._parts.communicator, state.cursor, self._place, last)
        data.come_to(cursor.epoch, Moment.EVALUATION_ENDS)
        for observer in self._parts.observers:
            observer.at_end_of_phase(state.cursor)
        return False

    def _end_epoch(self, evaluation_logs: Logs) -> None:
        parts, cursor = self._parts, self._state.cursor
        self._state.epoch_logs = logs = {**self._state.epoch_logs, **evaluation_logs}
        parts.callbacks.call("on_epoch_end", cursor.epoch, dict(logs))
        epoch = EndedEpoch(cursor, logs, is_last=parts.course.end_epoch())
        for observer in parts.observers:
            observer.after_epoch(epoch)
