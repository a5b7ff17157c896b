"""The training loop of one worker: rounds outside, atomic steps inside.

    until all is done:
        enter a round            wait for a place, hvd.init(), sync from rank 0
        take steps               until the membership changes or a collective fails
        leave the round          hvd.shutdown()

However a round ends, the worker stands at its last finished step and asks for the next round.
`Trainer` and `ElasticCallback` both run this loop. The loop calls the hooks of callbacks as
`keras.Model.fit` does.
"""

from __future__ import annotations

import logging
import time

from hvd_elastic_keras.common.errors import (
    CheckpointMissingError,
    CollectiveFailedError,
    TrainingOverError,
)
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.keras_internals.fit_call import initial_epoch_of
from hvd_elastic_keras.loop import raised_error
from hvd_elastic_keras.loop.epoch_phases import EvaluationPhase, TrainingPhase
from hvd_elastic_keras.loop.kept_on_disk import Durable
from hvd_elastic_keras.loop.leave_reason import LeaveReason
from hvd_elastic_keras.loop.loop_parts import LoopParts
from hvd_elastic_keras.loop.observer import Round
from hvd_elastic_keras.loop.round_driver import FailedAt, drive
from hvd_elastic_keras.loop.step_taker import StepTaker
from hvd_elastic_keras.state.cursor import Phase
from hvd_elastic_keras.worker.session import EntryReport

log = logging.getLogger(__name__)


class TrainingLoop:
    """Drives one worker from its first round to the end of the training."""

    def __init__(self, parts: LoopParts, durable: Durable) -> None:
        self._parts = parts
        self._state = parts.state
        self._durable = durable
        self._steps = StepTaker(parts)

    def run(self) -> None:
        """Trains to the end.

        Raises:
          WorkerLeavingError: this worker has to leave before the end.
          MasterUnreachableError: there is no master any more.
          CollectiveFailedError: the same step fails again and again although no worker is lost.
          Exception: callbacks have raised it.
        """
        try:
            drive(self)
        except TrainingOverError:
            self._catch_up()
        else:
            self._parts.session.finish(raised=self._state.marks.raised is not None)
        finally:
            for observer in self._parts.observers:
                observer.close()
        marks = self._state.marks
        if marks.raised is not None:
            raise self._parts.callbacks.raised or raised_error.unpacked(marks.raised)

    # --- rounds, see `Driven` ------------------------------------------------------------

    def enter(self, failure: str) -> Assignment:
        """Waits for a place in the next round."""
        exists, cursor = self._state.exists, self._state.cursor
        step, idle_s = cursor.global_step, self._steps.idle_s
        report = EntryReport(exists, cursor.progress, step, failure, idle_s)
        try:
            return self._parts.session.enter(report)
        finally:
            for observer in self._parts.observers:
                observer.after_entering()

    def on_order_to_leave(self, reason: LeaveReason) -> None:
        """Tells the observers, which may save a state that no other worker holds.

        This cannot wait for the end of a round: another worker may have heard of the stop first,
        and its flag may have ended the round already.
        """
        if self._state.exists:
            for observer in self._parts.observers:
                observer.on_order_to_leave(reason)

    def take_part(self, place: Assignment) -> bool:
        """Trains in a round. Returns whether all workers have finished."""
        parts = self._parts
        parts.observers.take_rank(place.rank)
        began = time.monotonic()
        parts.rounds.begin(place)
        initialised = time.monotonic()
        self._begin_round(place)
        log.info(
            "round %d: rank %d of %d at step %d; initialised in %.3f s, synchronised in %.3f s",
            *(place.round, place.rank, place.size, self._state.cursor.global_step),
            *(initialised - began, time.monotonic() - initialised),
        )
        return self._take_steps(place)

    def failed_at(self) -> FailedAt:
        """Returns the position of the state, which is that of the last finished step."""
        cursor = self._state.cursor
        what = f"Step {cursor.global_step}"
        return FailedAt(cursor.progress, what, whose="the model's own step")

    def restore(self, error: CollectiveFailedError) -> None:
        """Tells the observers. The state needs no repair: steps are atomic, so it is valid."""
        for observer in self._parts.observers:
            observer.on_failure(error)

    def leave(self, place: Assignment, *, finished: bool) -> None:
        """Shuts Horovod down, however the round has ended."""
        for observer in self._parts.observers:
            observer.after_round()
        self._state.end_sync()
        began = time.monotonic()
        self._parts.rounds.end()
        log.info("round %d left in %.3f s", place.round, time.monotonic() - began)

    # --- the beginning of a round --------------------------------------------------------

    def _begin_round(self, place: Assignment) -> None:
        parts, state = self._parts, self._state
        parts.world.enter_round(place.rank, place.size)
        starts_state = place.rank == 0 and not place.root_has_state
        self._enter_callbacks(place, resumes=starts_state and self._load_checkpoint())
        for observer in parts.observers:
            observer.on_round(Round(place, state.cursor, starts_state))
        parts.reporter.passes("syncing")
        state.synchronise(parts.communicator, place)
        entered = Round(place, state.cursor, starts_state)
        for observer in parts.observers:
            observer.after_sync(entered)
        parts.session.running(state.cursor.global_step, self._activity)
        for observer in parts.observers:
            observer.on_running(entered)

    def _load_checkpoint(self) -> bool:
        """Goes on from the newest checkpoint. Returns whether there is one."""
        if not self._durable.go_on_from_newest():
            return False
        self._parts.course.reopen_if_longer()
        return True

    def _enter_callbacks(self, place: Assignment, *, resumes: bool) -> None:
        state = self._state
        begun = resumes or state.exists or place.root_has_state
        epochs_begun = max(state.cursor.epoch, 0) if begun else None
        self._parts.callbacks.enter_round(place.rank, epochs_begun)
        restored = initial_epoch_of(self._parts.model)
        if restored and not begun and place.rank == 0:
            # `BackupAndRestore` has loaded weights in `on_train_begin`.
            state.cursor = state.cursor.start_of(Phase.TRAIN, restored)

    # --- steps ---------------------------------------------------------------------------

    @property
    def _activity(self) -> str:
        return "training" if self._parts.trains else "evaluating"

    def _take_steps(self, place: Assignment) -> bool:
        """Takes steps until a change (False) or the end of the training (True)."""
        training = TrainingPhase(self._parts, self._steps, place)
        evaluation = EvaluationPhase(self._parts, self._steps, place)
        cursor = self._state.cursor
        if cursor.step > 0 or cursor.phase is Phase.EVALUATE:
            training.tell_epoch()
        while self._state.cursor.phase is not Phase.FINISH and self._state.marks.raised is None:
            self._steps.tell_position(self._activity)
            trains = self._state.cursor.phase is Phase.TRAIN
            round_ends = training.run() if trains else evaluation.run()
            if round_ends:
                # No worker is lost: all leave after they have called their hooks.
                self._parts.callbacks.all_are_as_far()
                return False
        self._finish()
        return True

    def _finish(self) -> None:
        """Saves the results. Returns when every worker knows that they are saved."""
        self._steps.tell_position("finishing")
        self._parts.course.finish_data(self._parts.evaluate)
        self._come_to_the_end()
        self._end_callbacks()
        for observer in self._parts.observers:
            observer.on_end()
        with self._parts.communicator.collective():
            self._parts.communicator.barrier("elastic_finish")

    def _come_to_the_end(self) -> None:
        """Returns when all workers have come to the end of the training.

        What follows may change the weights (`use_ema`, `on_train_end`). If rank 0 is lost while it
        writes what belongs to the last epoch, the next one must still have the weights of then.
        """
        parts, state = self._parts, self._state
        if state.marks.ended:
            return
        raised = parts.callbacks.raised is not None
        with parts.communicator.collective():  # this is also a barrier
            raised = parts.communicator.any_true(raised, "elastic_end")
        if raised and state.marks.raised is None:
            self._steps.all_raise()
        parts.course.go_to(state.cursor)

    def _end_callbacks(self) -> None:
        model, marks = self._parts.model, self._state.marks
        if marks.raised is not None:  # as in Keras, nothing follows an error
            marks.ended = True
            return
        again = marks.ended
        if not again:
            marks.ended = True
            if self._parts.trains:
                # As at the end of `keras.Model.fit`: with `use_ema` the averages become weights.
                model.optimizer.finalize_variable_values(model.trainable_variables)
        self._parts.callbacks.end(dict(self._state.epoch_logs), again=again)

    def _catch_up(self) -> None:
        """Loads the results saved by the other workers, which are in a later part of the script."""
        self._durable.load_results()
        if not self._state.marks.ended:
            raise CheckpointMissingError(
                "The other workers have left this training for a later part of the script, but its "
                "result was not found in the job directory. Either they caught an error in "
                "it that this worker did not have: let errors end the script. Or hosts differ in "
                "--job_dir: all need the same."
            )
        self._parts.course.finish_data(self._parts.evaluate)
