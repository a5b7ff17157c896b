"""The phases of an epoch in one round: its training steps, then its evaluation."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.input.interfaces import LocalBatch, Moment
from hvd_elastic_keras.keras_internals.model_building import reset_metrics_at_start
from hvd_elastic_keras.loop.end_of_data import LastBatch, data_have_ended, end_of_data
from hvd_elastic_keras.loop.loop_parts import LoopParts
from hvd_elastic_keras.loop.observer import (
    EndedEpoch,
    EvaluatedStep,
    PresentEpoch,
    TakenStep,
    TrainedEpoch,
)
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.loop.step_taker import StepTaker
from hvd_elastic_keras.state.cursor import Phase
from hvd_elastic_keras.step.step_result import Logs, StepResult


class _Phase:
    """A phase of an epoch, in one round."""

    def __init__(self, parts: LoopParts, steps: StepTaker, place: Assignment) -> None:
        self._parts = parts
        self._state = parts.state
        self._steps = steps
        self._place = place


class TrainingPhase(_Phase):
    """Takes the training steps of one round."""

    def run(self) -> bool:
        """Trains to the end of the present epoch. Returns whether the round ends first."""
        state, course = self._state, self._parts.course
        if course.is_over(state.cursor.epoch):
            # Nothing is left to do: `initial_epoch`, or a backup, is at the end already.
            state.cursor = state.cursor.start_of(Phase.FINISH, state.cursor.epoch)
            return False
        if self._stop_is_agreed():
            return False
        self._begin_epoch()
        batches = self._batches()
        newest: LocalBatch | None = None
        while not course.train_phase_is_over():
            batch = next(batches, None)
            if batch is None:
                train = self._parts.train
                last = LastBatch(newest, train.share(self._place.rank, self._parts.shares.balance))
                end_of_data(train, self._parts.communicator, state.cursor, self._place, last)
                break
            newest = batch
            result = self._step(batch)
            if result.stopped:
                data_have_ended(self._parts.train, self._parts.communicator, state.cursor)
                if self._steps.all_raise():
                    return False
                self._agree_to_stop()
                break
            if result.change_pending:
                return True
        self._end()
        return False

    def tell_epoch(self) -> None:
        """Tells observers of the present epoch."""
        cursor, schedule = self._state.cursor, self._parts.schedule
        epoch = PresentEpoch(
            cursor.epoch,
            None if schedule.steps is not None else schedule.epochs,
            self._parts.course.epoch_steps(),
            max(cursor.step, cursor.phase is Phase.EVALUATE),
        )
        for observer in self._parts.observers:
            observer.on_epoch(epoch)

    def _begin_epoch(self) -> None:
        cursor, marks = self._state.cursor, self._state.marks
        if marks.epoch_begun != cursor.epoch:
            marks.epoch_begun = cursor.epoch
            if cursor.progress == 0:
                reset_metrics_at_start(self._parts.model)
            else:
                self._parts.model.reset_metrics()
            self._parts.callbacks.call("on_epoch_begin", cursor.epoch, {})
        self._parts.train.input.come_to(cursor.epoch, Moment.TRAINING_BEGINS)
        if cursor.step == 0:
            self.tell_epoch()

    def _batches(self) -> Iterator[LocalBatch]:
        """Yields this worker's part of the remaining batches of the epoch.

        Batches are cut anew whenever the shares change.
        """
        parts, shares, world = self._parts, self._parts.shares, self._parts.world
        due = True
        while due:
            due, changes = False, shares.changes
            asked: float | None = None  # the time to begin does not depend on the shares
            for batch in parts.train.batches(self._state.cursor, self._place.rank, shares.balance):
                world.waited_s = 0.0 if asked is None else time.perf_counter() - asked
                yield batch
                asked = time.perf_counter()
                due = shares.changes != changes
                if due:
                    break

    def _step(self, batch: LocalBatch) -> StepResult:
        parts, state, steps = self._parts, self._state, self._steps
        cursor = state.cursor
        steps.tell_position("training")
        wants_to_stop = self._wants_to_stop()
        if not wants_to_stop:
            steps.begin_batch("on_train_batch_begin")
        for observer in parts.observers:
            observer.before_step(cursor)
        stop = wants_to_stop or parts.callbacks.raised is not None
        result = steps.take(parts.train, batch, stop=stop)
        if result.stopped:
            return result
        if result.skipped:
            logs = steps.metrics_or({}) if cursor.step == 0 else state.epoch_logs
            result = dataclasses.replace(result, logs=logs)
        shares = parts.shares.balance.shares
        state.cursor = cursor.after_step(len(batch.worker_batches))
        left = parts.course.left()
        step = TakenStep(cursor, self._place, batch, shares, result, left.steps, left.evaluations)
        for observer in parts.observers:
            observer.on_commit(step)
        steps.tell_position("training")
        state.epoch_logs = result.logs
        of = parts.course.epoch_steps()
        steps.end_batch("on_train_batch_end", cursor.step, of, result.logs)
        for observer in parts.observers:
            observer.after_step(step)
        return result

    def _end(self) -> None:
        parts, state = self._parts, self._state
        cursor = state.cursor
        if parts.model.stop_training:
            parts.train.input.stop(cursor.epoch)  # also after the last batch, as in Keras
        else:
            parts.train.input.come_to(cursor.epoch, Moment.TRAINING_ENDS)
        for observer in parts.observers:
            observer.at_end_of_phase(cursor)
        epoch = TrainedEpoch(cursor, whole=parts.course.end_training_phase())
        for observer in parts.observers:
            observer.after_training_phase(epoch)
        state.epoch_logs = self._steps.metrics_or(state.epoch_logs)

    # --- callbacks that want to end the training ------------------------------------------

    def _wants_to_stop(self) -> bool:
        """Whether callbacks want to end the epoch before this step.

        As in Keras, if a callback asks for the end just before a batch, that batch is still taken.
        """
        cursor = self._state.cursor
        begun = self._state.marks.batch_begun == cursor.progress
        starts = self._parts.schedule.starts_execution(cursor.step)
        between = cursor.step > 0 and starts and not begun
        return between and bool(self._parts.model.stop_training)

    def _stop_is_agreed(self) -> bool:
        """Asks all workers, between two epochs, whether a callback wants to end the training.

        One worker is enough to end it. Callbacks see the same logs on all workers, but a callback
        may decide by time, for example. It must not leave the workers in different phases, waiting
        for each other.
        """
        cursor, parts = self._state.cursor, self._parts
        if cursor.step > 0 or cursor.progress == 0:
            return False
        wants_to_stop = bool(parts.model.stop_training) or parts.callbacks.raised is not None
        with parts.communicator.collective():
            stop = parts.communicator.any_true(wants_to_stop, "elastic_stop")
        if stop and not self._steps.all_raise():
            self._agree_to_stop()
            parts.course.go_to(cursor.start_of(Phase.FINISH, cursor.epoch))
        return stop

    def _agree_to_stop(self) -> None:
        self._state.marks.stop_agreed = self._parts.model.stop_training = True


class EvaluationPhase(_Phase):
    """Takes the steps of an evaluation, if one is due, and ends the epoch."""

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
        self._state.epoch_logs = logs = _joined(self._state.epoch_logs, evaluation_logs)
        shown = dict(logs)
        parts.callbacks.call("on_epoch_end", cursor.epoch, shown)
        epoch = EndedEpoch(cursor, logs, is_last=parts.course.end_epoch(), shown=shown)
        for observer in parts.observers:
            observer.after_epoch(epoch)


def _joined(training: Logs, evaluation: Logs) -> Logs:
    """Returns the logs of an epoch in Keras's order: sorted, but metrics of one group together.

    A `train_step` that returns `{m.name: m.result() for m in self.metrics}` has such a group:
    "compile_metrics", whose metrics come before "loss".
    """
    if list(training) == sorted(training):
        return dict(sorted({**training, **evaluation}.items()))
    return {**training, **dict(sorted(evaluation.items()))}
