"""Observers and policies of a training: they are told of its rounds, steps and epochs.

A policy decides what the next steps do; an observer changes nothing. A subclass of `Observer` or
`Policy` overrides the methods that it needs. To add one, put it into its list in
`api/build_loop.py`. All policies are called before all observers: what an observer shows or saves
includes their decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.loop.leave_reason import LeaveReason
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.step.step_result import Logs, StepResult


@dataclasses.dataclass(frozen=True)
class Round:
    """A round that this worker has entered.

    Attributes:
      place: this worker's place in the round.
      cursor: position of this worker; before the sync it may be behind the others.
      starts_state: whether this worker is the root and no worker had a state. Then the root's state
        is new or from a checkpoint.
    """

    place: Assignment
    cursor: Cursor
    starts_state: bool


@dataclasses.dataclass(frozen=True)
class PresentEpoch:
    """An epoch that begins, or goes on.

    Attributes:
      number: number of the epoch, from 0.
      epochs: number of epochs of the training; None if unknown.
      steps: number of steps of this epoch; None if unknown.
      done: number of steps taken; at least 1 where an evaluation goes on.
    """

    number: int
    epochs: int | None
    steps: int | None
    done: int


@dataclasses.dataclass(frozen=True)
class TakenStep:
    """A training step that all workers of the round have taken.

    Attributes:
      cursor: position at which the step was taken.
      place: this worker's place in the round.
      batch: this worker's part of the global batch.
      shares: micro-batches of a full global batch, by rank.
      result: outcome of the step, the same on all workers.
      steps_left: steps until the end of the training; None if unknown.
      evaluations_left: evaluations until the end of the training, as far as they are known.
    """

    cursor: Cursor
    place: Assignment
    batch: LocalBatch
    shares: Sequence[int]
    result: StepResult
    steps_left: int | None
    evaluations_left: int = 0

    @property
    def num_examples(self) -> int:
        """Examples of the global batch."""
        return self.batch.part.num_examples_of_step


@dataclasses.dataclass(frozen=True)
class EvaluatedStep:
    """A step of an evaluation, or of predictions, that all workers of the round have taken.

    Attributes:
      cursor: position at which the step was taken.
      place: this worker's place in the round.
      num_examples: examples of the global batch.
      steps: steps of the whole evaluation; None if unknown.
      logs: logs of the evaluation so far.
    """

    cursor: Cursor
    place: Assignment
    num_examples: int
    steps: int | None
    logs: Logs


@dataclasses.dataclass(frozen=True)
class TrainedEpoch:
    """An epoch after its last training step; its evaluation comes next.

    Attributes:
      cursor: position after the last training step.
      whole: whether all data of the epoch have been used.
    """

    cursor: Cursor
    whole: bool


@dataclasses.dataclass(frozen=True)
class EndedEpoch:
    """An epoch that has ended, with its evaluation.

    Attributes:
      cursor: position after the last step of the epoch.
      logs: logs as callbacks get them.
      is_last: whether the training ends with this epoch.
      shown: the logs with what callbacks of this worker have added or changed, for people.
    """

    cursor: Cursor
    logs: Logs
    is_last: bool
    shown: Logs


class Observer:
    """Watches a training. All methods of this base class do nothing.

    The methods are called on all workers of a round, in the thread that trains. All workers wait
    while a method runs. An observer neither directs the training nor changes its state (but
    functions of the user that it calls may). An error in a method ends the training. A method may
    raise `CollectiveFailedError` only if all workers take part in the same collective.
    """

    root_only: ClassVar[bool] = False
    """Whether the methods are called only in rounds in which this worker is rank 0."""

    # --- rounds --------------------------------------------------------------------------

    def after_entering(self) -> None:
        """Called when the worker no longer waits for a place: it has one, or gets none."""

    def on_round(self, entered: Round) -> None:
        """Called when a round begins, before the sync: newcomers have no state yet.

        Horovod is initialised, and a checkpoint is loaded if one was needed.
        """

    def after_sync(self, entered: Round) -> None:
        """Called when all workers of the round hold the same state, before the master knows it."""

    def on_running(self, entered: Round) -> None:
        """Called when the master has been told that this worker trains."""

    def on_failure(self, error: CollectiveFailedError) -> None:
        """Called when a collective has failed, before the round is left.

        The state is that of the last step.
        """

    def after_round(self) -> None:
        """Called when the round ends, for any reason; Horovod is still initialised."""

    def on_order_to_leave(self, reason: LeaveReason) -> None:
        """Called when this worker, or the whole job, ends before the end of the training.

        Called only if this worker holds a state.
        """

    # --- steps and epochs ----------------------------------------------------------------

    def on_epoch(self, epoch: PresentEpoch) -> None:
        """Called when an epoch begins or goes on in another round.

        At the beginning, `on_epoch_begin` of callbacks has been called before.
        """

    def before_step(self, cursor: Cursor) -> None:
        """Called before the training step at `cursor`, after the batch-begin hooks of callbacks."""

    def on_commit(self, step: TakenStep) -> None:
        """Called when a training step is part of the state, before the hooks of callbacks."""

    def after_step(self, step: TakenStep) -> None:
        """Called after a training step and the hooks of callbacks. The round may end next."""

    def after_evaluation_step(self, step: EvaluatedStep) -> None:
        """Called after an evaluation step and the hooks of callbacks. The round may end next."""

    def at_end_of_phase(self, cursor: Cursor) -> None:
        """Called after the last step of the phase at `cursor`, training or evaluation."""

    def after_training_phase(self, epoch: TrainedEpoch) -> None:
        """Called after the training steps of an epoch: the state stands before the evaluation."""

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """Called after an epoch and its callbacks: the state stands before the next epoch."""

    def on_end(self) -> None:
        """Called on all workers when the training has ended, after `on_train_end` of callbacks."""

    def close(self) -> None:
        """Called last, when this worker is out of the training, with or without an error."""


class Policy(Observer):
    """Decides what the next steps do, and may change the state: alike on all workers."""


class Observers:
    """The policies and observers of one worker, in the order in which they are called.

    Iterating gives only those to call at this worker's rank in the newest round.
    """

    def __init__(self, observers: Iterable[Observer], policies: Iterable[Policy] = ()) -> None:
        self._observers = [*policies, *observers]
        self._is_root = False

    def take_rank(self, rank: int) -> None:
        """Notes this worker's rank in the round that begins."""
        self._is_root = rank == 0

    def __iter__(self) -> Iterator[Observer]:
        return (o for o in self._observers if self._is_root or not o.root_only)
