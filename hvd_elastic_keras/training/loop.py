"""The training loop of one worker: rounds outside, atomic steps inside.

    until all is done:
        enter a round            wait for a place, hvd.init(), sync from rank 0
        take steps               until the membership changes or a collective fails
        leave the round          hvd.shutdown()

Whatever ends a round, the worker stands at its last finished step and asks for the next one.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

from hvd_elastic_keras.config import TrainingConfig
from hvd_elastic_keras.data.pipeline import Pipeline
from hvd_elastic_keras.errors import CollectiveFailedError, WorkerLeavingError
from hvd_elastic_keras.protocol import Assignment
from hvd_elastic_keras.training.batch_plan import Share, share_of
from hvd_elastic_keras.training.callback_runner import CallbackRunner
from hvd_elastic_keras.training.change_flag import ChangeFlag
from hvd_elastic_keras.training.cursor import Phase
from hvd_elastic_keras.training.progress import ProgressDisplay
from hvd_elastic_keras.training.run_state import RunState
from hvd_elastic_keras.training.step import AtomicStep
from hvd_elastic_keras.worker.communicator import Communicator
from hvd_elastic_keras.worker.session import EntryReport, Session

log = logging.getLogger(__name__)
MAX_UNEXPLAINED_FAILURES = 3
"""So many failures of the same step by the same members are not a matter of membership."""


@dataclasses.dataclass(frozen=True)
class PhaseRunner:
    """What a phase computes: its input and its compiled step."""

    pipeline: Pipeline
    step: AtomicStep


@dataclasses.dataclass(frozen=True)
class Durable:
    """What rank 0 keeps on disk; the functions do nothing without a job directory."""

    save_checkpoint: Callable[[], None]
    save_results: Callable[[], None]
    load_newest: Callable[[], None]
    exists: Callable[[], bool]
    """Whether there is a checkpoint."""


@dataclasses.dataclass(kw_only=True)
class TrainingLoop:
    """Drives one worker from its first round to the end of the training."""

    config: TrainingConfig
    session: Session
    communicator: Communicator
    state: RunState
    train: PhaseRunner
    evaluate: PhaseRunner | None
    callbacks: CallbackRunner
    change_flag: ChangeFlag
    display: ProgressDisplay
    durable: Durable
    _failures: list[tuple[int, tuple[str, ...]]] = dataclasses.field(default_factory=list)

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
            report = EntryReport(self.state.exists, cursor.progress, cursor.global_step, failure)
            try:
                place = self.session.enter(report)
            except WorkerLeavingError as leaving:
                # Here and not at the end of the round: another worker may have heard of the stop
                # first, and ended the round with its flag.
                if leaving.job_stops and was_root and self.state.exists:
                    self.durable.save_checkpoint()
                raise
            failure = ""
            was_root = place.rank == 0
            try:
                finished = self._round(place)
            except CollectiveFailedError as error:
                failure = str(error)
                log.info("%s", failure)
                self._check_repetition(place, error)
            finally:
                ended = time.monotonic()
                self.communicator.shut_down()
                log.info("round %d left in %.3f s", place.round, time.monotonic() - ended)
        self.session.finish()

    def _round(self, place: Assignment) -> bool:
        began = time.monotonic()
        if place.rendezvous:
            self.communicator.start(place)
        else:
            self.communicator.start_alone()
        initialised = time.monotonic()
        self.change_flag.refresh()
        loads = place.rank == 0 and not place.root_has_state
        resumes = loads and self.durable.exists()
        self.callbacks.enter_round(place.rank, resumes or self.state.cursor.progress > 0)
        if loads:
            self.durable.load_newest()
            self._reopen_if_longer()
        self.state.synchronise(self.communicator, place)
        self.session.running(self.state.cursor.global_step)
        log.info(
            "round %d: rank %d of %d at step %d; initialised in %.3f s, synchronised in %.3f s",
            *(place.round, place.rank, place.size, self.state.cursor.global_step),
            *(initialised - began, time.monotonic() - initialised),
        )
        return self._steps(place)

    def _reopen_if_longer(self) -> None:
        """Goes on from a checkpoint of a finished training if it is to be longer now.

        Not if a callback has ended it.
        """
        cursor = self.state.cursor
        if cursor.phase is Phase.FINISH and not self._training_over(cursor.epoch):
            self.state.cursor = cursor.start_of(Phase.TRAIN, cursor.epoch)

    def _check_repetition(self, place: Assignment, error: CollectiveFailedError) -> None:
        key = (self.state.cursor.progress, place.members)
        self._failures = [f for f in self._failures if f == key] + [key]
        if len(self._failures) >= MAX_UNEXPLAINED_FAILURES:
            raise CollectiveFailedError(
                f"Step {self.state.cursor.global_step} failed {len(self._failures)} times although"
                f" no worker was lost: {error}. The error is probably in the model's own step."
            ) from error

    def _steps(self, place: Assignment) -> bool:
        """Takes steps until a change (False) or the end of the training (True)."""
        share = share_of(place.rank, place.size, self.config.num_micro_batches)
        if self.state.cursor.step > 0:
            self._begin_display(place)
        while self.state.cursor.phase is not Phase.FINISH:
            if self.state.cursor.phase is Phase.TRAIN:
                changed = self._train_epoch(place, share)
            else:
                changed = self._evaluate_epoch(place, share)
            if changed:
                return False
        self._finish(place)
        return True

    def _begin_display(self, place: Assignment) -> None:
        cursor = self.state.cursor
        if place.rank == 0:
            epochs = None if self.config.steps is not None else self.config.epochs
            self.display.begin_epoch(cursor.epoch, epochs, self._epoch_steps(), cursor.step)

    # --- phases --------------------------------------------------------------------------

    def _train_epoch(self, place: Assignment, share: Share) -> bool:
        if self._stop_is_agreed():
            return False
        cursor = self.state.cursor
        if self.state.epoch_begun != cursor.epoch:
            self.state.epoch_begun = cursor.epoch
            self.callbacks.call("on_epoch_begin", cursor.epoch)
        if cursor.step == 0:
            self._begin_display(place)
        batches = self.train.pipeline.batches(cursor.epoch, share, cursor.step)
        while not self._train_phase_over():
            batch = next(batches)
            cursor = self.state.cursor
            self.session.at("training", cursor.global_step, cursor.progress)
            self.callbacks.call("on_train_batch_begin", cursor.step)
            with self.communicator.collective():
                result = self.train.step(
                    batch, cursor.global_step, bool(self.train.step.model.stop_training)
                )
            self.state.cursor = cursor.after_step()
            self.session.at("training", cursor.global_step + 1, cursor.progress + 1)
            self.state.epoch_logs = logs = result.logs
            if result.stop_wanted:
                self.state.stop_agreed = self.train.step.model.stop_training = True
            self.callbacks.call("on_train_batch_end", cursor.step, logs)
            if place.rank == 0:
                examples = batch.part.num_examples_of_step
                left = self._steps_left()
                self.display.step(cursor.step + 1, logs, examples, place.size, left)
            if result.change_pending:
                return True
        self._end_of_training_phase()
        return False

    def _evaluate_epoch(self, place: Assignment, share: Share) -> bool:
        runner = self.evaluate
        cursor = self.state.cursor
        if runner is None:
            self._end_of_epoch(place, {})
            return False
        if cursor.step == 0:
            self.callbacks.call("on_test_begin")
        for batch in runner.pipeline.batches(0, share, cursor.step):
            cursor = self.state.cursor
            self.session.at("evaluating", cursor.global_step, cursor.progress)
            with self.communicator.collective():
                changed = runner.step(batch, cursor.global_step).change_pending
            self.state.cursor = cursor.after_step()
            if changed:
                return True
        # Also right if a change came after the last step: the metrics hold the whole result.
        logs = {
            name: float(value) for name, value in self.train.step.model.get_metrics_result().items()
        }
        self.callbacks.call("on_test_end", logs)
        self._end_of_epoch(place, {f"val_{name}": value for name, value in logs.items()})
        return False

    def _train_phase_over(self) -> bool:
        cursor, limit = self.state.cursor, self.config.steps
        return (
            cursor.step >= self.train.pipeline.steps_per_epoch
            or (limit is not None and cursor.global_step >= limit)
            or self.state.stop_agreed
        )

    def _end_of_training_phase(self) -> None:
        self.train.step.model.reset_metrics()
        cursor = self.state.cursor
        self.state.cursor = cursor.start_of(Phase.EVALUATE, cursor.epoch)

    def _stop_is_agreed(self) -> bool:
        """Asks everybody, between two epochs, whether callbacks want to end the training.

        One worker's wish is enough. Callbacks see the same logs everywhere, but one that decides
        by time, say, must not leave the workers in different phases, waiting for each other.
        """
        cursor = self.state.cursor
        model = self.train.step.model
        if cursor.step > 0 or cursor.progress == 0:
            return False
        with self.communicator.collective():
            stop = self.communicator.any_true(bool(model.stop_training), "elastic_stop")
        if stop:
            self.state.stop_agreed = model.stop_training = True
            finish = cursor.start_of(Phase.FINISH, cursor.epoch)
            # Counts as progress: who has not heard of it is behind, and is brought up to date.
            self.state.cursor = dataclasses.replace(finish, progress=cursor.progress + 1)
        return stop

    def _end_of_epoch(self, place: Assignment, evaluation_logs: dict[str, float]) -> None:
        cursor = self.state.cursor
        logs = {**self.state.epoch_logs, **evaluation_logs}
        self.train.step.model.reset_metrics()
        self.callbacks.call("on_epoch_end", cursor.epoch, dict(logs))
        over = self._training_over(cursor.epoch + 1)
        phase = Phase.FINISH if over else Phase.TRAIN
        self.state.cursor = cursor.start_of(phase, cursor.epoch + 1)
        if place.rank == 0:
            self.display.end_epoch(logs)
            self.session.record(
                "epoch_end", epoch=cursor.epoch, step=cursor.global_step, metrics=logs
            )
            every = self.config.checkpoint_every_n_epochs
            if every and (over or (cursor.epoch + 1) % every == 0):
                self.durable.save_checkpoint()

    def _training_over(self, epochs_done: int) -> bool:
        config = self.config
        return (
            self.state.stop_agreed
            or (config.epochs is not None and epochs_done >= config.epochs)
            or (config.steps is not None and self.state.cursor.global_step >= config.steps)
        )

    def _finish(self, place: Assignment) -> None:
        """Saves the results; done when everybody knows that they are saved."""
        if not self.state.ended:
            self.state.ended = True
            model = self.train.step.model
            # As at the end of `keras.Model.fit`: with `use_ema` the averages become the weights.
            model.optimizer.finalize_variable_values(model.trainable_variables)
            self.callbacks.call("on_train_end", dict(self.state.epoch_logs))
        self.session.at("finishing", self.state.cursor.global_step, self.state.cursor.progress)
        if place.rank == 0:
            self.durable.save_results()
        with self.communicator.collective():
            self.communicator.barrier("elastic_finish")

    def _epoch_steps(self) -> int:
        steps = self.train.pipeline.steps_per_epoch
        if self.config.steps is None:
            return steps
        cursor = self.state.cursor
        return min(steps, cursor.step + self.config.steps - cursor.global_step)

    def _steps_left(self) -> int:
        cursor = self.state.cursor
        bounds = []
        if self.config.epochs is not None:
            per_epoch = self.train.pipeline.steps_per_epoch
            epochs_left = self.config.epochs - cursor.epoch
            bounds.append(epochs_left * per_epoch - cursor.step)
        if self.config.steps is not None:
            bounds.append(self.config.steps - cursor.global_step)
        return max(0, min(bounds))
