"""The training loop of one worker: rounds outside, atomic steps inside.

    until all is done:
        enter a round            wait for a place, hvd.init(), sync from rank 0
        take steps               until the membership changes or a collective fails
        leave the round          hvd.shutdown()

Whatever ends a round, the worker stands at its last finished step and asks for the next one.
`Trainer` and `ElasticCallback` both run this loop. It calls the hooks of callbacks as
`keras.Model.fit` does.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

import keras

from hvd_elastic_keras.batch_plan import describe_shares
from hvd_elastic_keras.data.notices import Notice
from hvd_elastic_keras.data.pipeline import LocalBatch
from hvd_elastic_keras.errors import (
    CheckpointMissingError,
    CollectiveFailedError,
    TrainingOverError,
    WorkerLeavingError,
)
from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.training.audit import Auditor, FinishedEpoch, finished_step
from hvd_elastic_keras.training.balance import Balance
from hvd_elastic_keras.training.callback_runner import CallbackRunner
from hvd_elastic_keras.training.course import Course
from hvd_elastic_keras.training.cursor import Phase
from hvd_elastic_keras.training.data_end import announce_end, data_have_ended
from hvd_elastic_keras.training.durable import Durable
from hvd_elastic_keras.training.failures import UnexplainedFailures
from hvd_elastic_keras.training.growing_batch import GrowingBatch
from hvd_elastic_keras.training.learning_rate_scale import Ramp
from hvd_elastic_keras.training.phases import PhaseRunner
from hvd_elastic_keras.training.progress import ProgressDisplay
from hvd_elastic_keras.training.read_along import ReadAlong
from hvd_elastic_keras.training.run_state import RunState
from hvd_elastic_keras.training.schedule import Schedule
from hvd_elastic_keras.training.step import StepResult, python_logs
from hvd_elastic_keras.training.world import World
from hvd_elastic_keras.worker.communicator import Communicator
from hvd_elastic_keras.worker.session import EntryReport, Session

log = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True)
class TrainingLoop:
    """Drives one worker from its first round to the end of the training."""

    model: keras.Model
    schedule: Schedule
    session: Session
    communicator: Communicator
    state: RunState
    train: PhaseRunner
    evaluate: PhaseRunner | None
    callbacks: CallbackRunner
    world: World
    display: ProgressDisplay
    durable: Durable
    on_round: Callable[[int], None]
    """Called with the world size in every round, before newcomers get the state."""
    auditor: Auditor | None = None
    """Set where the examples of each step go into a ledger."""
    read_along: ReadAlong | None = None
    """Reads the inputs until this worker has its first place."""
    growing: GrowingBatch | None = None
    """Set where the batch grows with the workers."""
    notices: list[Notice] = dataclasses.field(default_factory=list)
    """What rank 0 tells people when it begins."""
    _balance: Balance = dataclasses.field(init=False)
    """The shares of the present round."""
    _ramp: Ramp = dataclasses.field(default_factory=Ramp)
    _stepped_at: float = 0.0
    _failures: UnexplainedFailures = dataclasses.field(default_factory=UnexplainedFailures)
    _course: Course = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._course = Course(self.schedule, self.state, self.train, self.world)

    def run(self) -> None:
        """Trains to the end.

        Raises:
          WorkerLeavingError: this worker has to leave before the end.
          MasterUnreachableError: there is no master any more.
          CollectiveFailedError: the same step fails again and again although nobody is lost.
        """
        failure = ""
        finished = False
        was_root = False
        while not finished:
            cursor = self.state.cursor
            idle_s = time.monotonic() - self._stepped_at if self._stepped_at else 0.0
            report = EntryReport(
                self.state.exists, cursor.progress, cursor.global_step, failure, idle_s
            )
            try:
                place = self._enter(report)
            except WorkerLeavingError as leaving:
                # Here and not at the end of the round: another worker may have heard of the stop
                # first, and ended the round with its flag.
                if leaving.job_stops and was_root and self.state.exists:
                    self._save_checkpoint()
                raise
            except TrainingOverError:
                self._catch_up()
                return
            failure = ""
            was_root = place.rank == 0
            try:
                finished = self._round(place)
            except CollectiveFailedError as error:
                failure = str(error)
                log.info("%s", failure)
                self._failures.note(
                    self.state.cursor.progress,
                    place.members,
                    error,
                    what=f"Step {self.state.cursor.global_step}",
                    whose="the model's own step",
                )
            finally:
                self._flush_ledger()
                ended = time.monotonic()
                self.communicator.shut_down()
                log.info("round %d left in %.3f s", place.round, time.monotonic() - ended)
        self.session.finish()

    def _enter(self, report: EntryReport) -> Assignment:
        try:
            return self.session.enter(report)
        finally:
            if self.read_along is not None:
                self.read_along.stop()

    def _catch_up(self) -> None:
        """Takes the result that others have saved: they are in a later part of the script."""
        self.durable.load_results()
        if not self.state.marks.ended:
            raise CheckpointMissingError(
                "The other workers have left this training for a later part of the script, but its "
                "result was not found in the job directory. Either they caught an error in "
                "it that this worker did not have: let errors end the script. Or hosts differ in "
                "--job_dir: all need the same."
            )
        self._course.take_seeds_of_passes(self.evaluate)

    def _round(self, place: Assignment) -> bool:
        began = time.monotonic()
        if place.rendezvous:
            self.communicator.start(place)
        else:
            self.communicator.start_alone()
        initialised = time.monotonic()
        self.world.enter_round(place.rank, place.size)
        self._balance = Balance(place.size, self.train.input.num_micro_batches)
        loads = place.rank == 0 and not place.root_has_state
        resumes = loads and self.durable.exists()
        if resumes:
            self.durable.go_on_from_newest()
            self._course.reopen_if_longer()
        self._enter_callbacks(place, resumes)
        self.on_round(place.size)
        if self.auditor is not None:
            cursor = self.state.cursor
            self.auditor.enter_round(place.rank, cursor.global_step, cursor.epoch, takes_up=loads)
        self.state.synchronise(self.communicator, place)
        self._ramp = self.state.ramp
        if self.growing is not None:
            step = self.state.cursor.global_step
            self._ramp = self.growing.enter_round(self._ramp, place, step)
        self.session.running(self.state.cursor.global_step)
        while place.rank == 0 and self.notices:
            notice = self.notices.pop(0)
            self.session.show(f"{notice.text}\n")
            if notice.event:
                self.session.record(notice.event, **notice.fields)
        log.info(
            "round %d: rank %d of %d at step %d; initialised in %.3f s, synchronised in %.3f s",
            *(place.round, place.rank, place.size, self.state.cursor.global_step),
            *(initialised - began, time.monotonic() - initialised),
        )
        return self._steps(place)

    def _enter_callbacks(self, place: Assignment, resumes: bool) -> None:
        begun = resumes or self.state.exists or place.root_has_state
        epochs_begun = max(self.state.cursor.epoch, 0) if begun else None
        self.callbacks.enter_round(place.rank, epochs_begun)
        restored = getattr(self.model, "_initial_epoch", None)
        if restored and not begun and place.rank == 0:
            # `BackupAndRestore` has loaded weights in `on_train_begin`.
            self.state.cursor = self.state.cursor.start_of(Phase.TRAIN, restored)

    def _steps(self, place: Assignment) -> bool:
        """Takes steps until a change (False) or the end of the training (True)."""
        cursor = self.state.cursor
        if cursor.step > 0 or cursor.phase is Phase.EVALUATE:
            self._begin_display(place)
        while self.state.cursor.phase is not Phase.FINISH:
            if self.state.cursor.phase is Phase.TRAIN:
                changed = self._train_epoch(place)
            else:
                changed = self._evaluate_epoch(place)
            if changed:
                return False
        self._finish(place)
        return True

    def _begin_display(self, place: Assignment) -> None:
        cursor = self.state.cursor
        if place.rank == 0:
            epochs = None if self.schedule.steps is not None else self.schedule.epochs
            done = max(cursor.step, cursor.phase is Phase.EVALUATE)
            self.display.begin_epoch(cursor.epoch, epochs, self._course.epoch_steps(), done)

    # --- phases --------------------------------------------------------------------------

    def _train_epoch(self, place: Assignment) -> bool:
        if self._course.is_over(self.state.cursor.epoch):
            # Nothing is left to do: `initial_epoch`, or a backup, is at the end already.
            self.state.cursor = self.state.cursor.start_of(Phase.FINISH, self.state.cursor.epoch)
            return False
        if self._stop_is_agreed():
            return False
        cursor, marks = self.state.cursor, self.state.marks
        if marks.epoch_begun != cursor.epoch:
            marks.epoch_begun = cursor.epoch
            self.callbacks.call("on_epoch_begin", cursor.epoch, {})
        if cursor.step == 0:
            self._begin_display(place)
        batches = self.train.batches(cursor, place.rank, self._balance)
        while not self._course.train_phase_is_over():
            batch = next(batches, None)
            if batch is None:
                self._end_of_data(self.train, place)
                break
            result = self._train_step(batch, place)
            if result.stopped:
                data_have_ended(self.train, self.communicator, self.state.cursor)
                marks.stop_agreed = self.model.stop_training = True
                break
            if result.change_pending:
                return True
            if self._follow_speed(result, batch, place):
                batches = self.train.batches(self.state.cursor, place.rank, self._balance)
        self._end_of_training_phase()
        return False

    def _train_step(self, batch: LocalBatch, place: Assignment) -> StepResult:
        cursor = self.state.cursor
        self._tell_position("training")
        wants_to_stop = self._wants_to_stop()
        if not wants_to_stop:
            self._begin_batch("on_train_batch_begin")
        if self.growing is not None:
            self.growing.before_step(self._ramp, cursor.global_step)
        with self.communicator.collective(), self.state.user.atomic():
            result = self.train.step(batch, cursor.global_step, wants_to_stop)
        if result.stopped:
            return result
        self._stepped_at = time.monotonic()
        self.state.cursor = cursor.after_step(len(batch.portions))
        self.state.ramp = self._ramp
        if self.auditor is not None:
            shares = self._balance.shares
            self.auditor.note(finished_step(cursor, batch, place, shares, result.digest))
        self._tell_position("training")
        self.state.epoch_logs = logs = result.logs
        self._end_batch("on_train_batch_end", cursor.step, self._course.epoch_steps(), logs)
        if place.rank == 0:
            examples = batch.part.num_examples_of_step
            self.display.step(
                cursor.step + 1, logs, examples, place.size, self._course.steps_left()
            )
        return result

    def _evaluate_epoch(self, place: Assignment) -> bool:
        runner = self.evaluate
        cursor, marks = self.state.cursor, self.state.marks
        if runner is None or not self.schedule.evaluates_after(cursor.epoch):
            self._end_of_epoch(place, {})
            return False
        if marks.evaluation_begun != cursor.epoch:
            marks.evaluation_begun = cursor.epoch
            self.callbacks.call("on_test_begin", {})
        steps = runner.input.steps(cursor.epoch)
        for batch in runner.batches(cursor, place.rank, self._balance):
            cursor = self.state.cursor
            self._tell_position("evaluating")
            self._begin_batch("on_test_batch_begin")
            with self.communicator.collective(), self.state.user.atomic():
                result = runner.step(batch, cursor.global_step)
            if result.stopped:
                data_have_ended(runner, self.communicator, cursor)
            self._stepped_at = time.monotonic()
            self.state.cursor = cursor.after_step()
            self.state.evaluation_logs = result.logs
            self._end_batch("on_test_batch_end", cursor.step, steps, result.logs)
            if result.change_pending:
                return True
        if steps is None or self.state.cursor.step < steps:
            self._end_of_data(runner, place)
        logs = self._metrics_or(self.state.evaluation_logs)
        self.callbacks.call("on_test_end", dict(logs))
        self._end_of_epoch(place, {f"val_{name}": value for name, value in logs.items()})
        return False

    def _end_of_data(self, runner: PhaseRunner, place: Assignment) -> None:
        """The data have ended, which nobody knew before."""
        if place.size > 1:
            announce_end(runner, self.communicator, self.state.cursor)
        runner.input.confirm_end()

    def _tell_position(self, activity: str) -> None:
        cursor = self.state.cursor
        self.session.at(activity, cursor.global_step, cursor.progress)
        runner = self.evaluate if cursor.phase is Phase.EVALUATE else self.train
        if runner is not None and runner.input.from_front:
            self.session.reading(runner.position(cursor, self.session.training))

    def _follow_speed(self, result: StepResult, batch: LocalBatch, place: Assignment) -> bool:
        """Whether the shares are others from the next step on."""
        if not result.seconds:
            return False
        seconds = result.seconds[: place.size]
        changed = self._balance.after_step(seconds, batch.part.num_examples_of_step)
        if changed and place.rank == 0:
            step, balance = self.state.cursor.global_step, self._balance
            slowness = {
                m: round(s, 2) for m, s in zip(place.members, balance.slowness, strict=True)
            }
            slowest = max(slowness, key=slowness.__getitem__)
            self.session.record(
                "shares_balanced", step=step, micro_batches=balance.shares, slowness=slowness
            )
            self.display.note(
                f"shares follow speed from step {step} on: {describe_shares(balance.shares)} "
                f"micro-batches; slowest is {slowest}, {slowness[slowest]:.1f} times the fastest's "
                "time per example"
            )
        return changed

    def _wants_to_stop(self) -> bool:
        """Whether callbacks want to end the epoch before this step.

        As in Keras, after a wish from before a batch that batch is still taken.
        """
        cursor = self.state.cursor
        begun = self.state.marks.batch_begun == cursor.progress
        between = cursor.step > 0 and self.schedule.starts_execution(cursor.step) and not begun
        return between and bool(self.model.stop_training)

    def _begin_batch(self, hook: str) -> None:
        cursor, marks = self.state.cursor, self.state.marks
        if marks.batch_begun != cursor.progress and self.schedule.starts_execution(cursor.step):
            marks.batch_begun = cursor.progress
            self.callbacks.call(hook, cursor.step, {})

    def _end_batch(self, hook: str, step: int, steps: int | None, logs: dict[str, Any]) -> None:
        if self.schedule.ends_execution(step) or step + 1 == steps:
            self.callbacks.call(hook, self.schedule.number_at_end(step), dict(logs))

    def _metrics_or(self, logs: dict[str, Any]) -> dict[str, Any]:
        """The logs of a finished phase, by Keras's rule (`_get_metrics_result_or_logs`)."""
        results = python_logs(self.model.get_metrics_result())
        return results if results.keys() == logs.keys() else logs

    def _end_of_training_phase(self) -> None:
        cursor = self.state.cursor
        whole = self._course.end_training_phase()
        if self.auditor is not None:
            first = cursor.global_step - cursor.step
            self.auditor.note(FinishedEpoch(cursor.epoch, first, cursor.step, whole))
        self.state.epoch_logs = self._metrics_or(self.state.epoch_logs)
        self.model.reset_metrics()

    def _stop_is_agreed(self) -> bool:
        """Asks everybody, between two epochs, whether callbacks want to end the training.

        One worker's wish is enough. Callbacks see the same logs everywhere, but one that decides
        by time, say, must not leave the workers in different phases, waiting for each other.
        """
        cursor = self.state.cursor
        if cursor.step > 0 or cursor.progress == 0:
            return False
        with self.communicator.collective():
            stop = self.communicator.any_true(bool(self.model.stop_training), "elastic_stop")
        if stop:
            self.state.marks.stop_agreed = self.model.stop_training = True
            finish = cursor.start_of(Phase.FINISH, cursor.epoch)
            self.state.cursor = dataclasses.replace(finish, progress=cursor.progress + 1)
        return stop

    def _end_of_epoch(self, place: Assignment, evaluation_logs: dict[str, Any]) -> None:
        cursor = self.state.cursor
        self.state.epoch_logs = logs = {**self.state.epoch_logs, **evaluation_logs}
        self.callbacks.call("on_epoch_end", cursor.epoch, dict(logs))
        self.model.reset_metrics()
        over = self._course.end_epoch()
        if place.rank == 0:
            self.display.end_epoch(logs)
            if self.auditor is not None:  # who reads of the end of an epoch finds its ledger
                self.auditor.flush(judged=False)
            self.session.record(
                "epoch_end",
                epoch=cursor.epoch,
                step=cursor.global_step,
                metrics=_plain(logs),
                audited=self.auditor is not None and self.auditor.records,
            )
            every = self.schedule.checkpoint_every_n_epochs
            if every and (over or (cursor.epoch + 1) % every == 0):
                self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        # What comes before a checkpoint is never trained again, so it has to be on file first.
        if self.auditor is not None:
            self.auditor.flush(judged=False)
        self.durable.save_checkpoint()

    def _flush_ledger(self) -> None:
        if self.auditor is not None:
            self.auditor.flush()

    def _finish(self, place: Assignment) -> None:
        """Saves the results; done when everybody knows that they are saved."""
        self._end()
        self._tell_position("finishing")
        if place.rank == 0:
            self._flush_ledger()  # after the barrier nobody could do it for this worker
            self.durable.save_results()
        with self.communicator.collective():
            self.communicator.barrier("elastic_finish")

    def _end(self) -> None:
        marks = self.state.marks
        again = marks.ended
        if not again:
            marks.ended = True
            # As at the end of `keras.Model.fit`: with `use_ema` the averages become the weights.
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        self.callbacks.end(dict(self.state.epoch_logs), again=again)


def _plain(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs in terms of JSON."""
    return {n: v if isinstance(v, int | float) else v.tolist() for n, v in logs.items()}
