"""Those who watch a training: they hear of its rounds, steps and epochs, and change nothing.

A subclass of `Observer` takes the calls that it cares for. To add one, hand it to the list in
`api/build_loop.py`; its place there is the order in which it hears of things.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.loop.parting import Parting
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.step.step_result import Logs, StepResult


@dataclasses.dataclass(frozen=True)
class Round:
    """A round that this worker has entered.

    Attributes:
      place: of this worker.
      cursor: where this worker is: before a sync, it may be behind.
      takes_up: whether this worker is the root and nobody had a state: its own is new, or from a
        checkpoint.
    """

    place: Assignment
    cursor: Cursor
    takes_up: bool


@dataclasses.dataclass(frozen=True)
class PresentEpoch:
    """An epoch that begins, or goes on.

    Attributes:
      number: from 0.
      epochs: of the training; None if nobody knows.
      steps: of this epoch; None if nobody knows.
      done: steps that have been taken; not 0 where the evaluation goes on.
    """

    number: int
    epochs: int | None
    steps: int | None
    done: int


@dataclasses.dataclass(frozen=True)
class TakenStep:
    """A training step that all workers of the round have taken.

    Attributes:
      cursor: where it was taken.
      place: of this worker.
      batch: this worker's part.
      shares: micro-batches of a full global batch, by rank.
      result: the same on all workers.
      steps_left: until the end of the training; None if nobody knows.
      evaluations_left: the same, as far as they are known, if the training evaluates at all.
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
        """Of the global batch."""
        return self.batch.part.num_examples_of_step


@dataclasses.dataclass(frozen=True)
class EvaluatedStep:
    """A step of an evaluation, or of predictions, that all workers of the round have taken.

    Attributes:
      cursor: where it was taken.
      place: of this worker.
      num_examples: of the global batch.
      steps: of the whole evaluation; None if nobody knows.
      logs: of the evaluation so far.
    """

    cursor: Cursor
    place: Assignment
    num_examples: int
    steps: int | None
    logs: Logs


@dataclasses.dataclass(frozen=True)
class TrainedEpoch:
    """An epoch of which all training steps have been taken; its evaluation comes next.

    Attributes:
      cursor: behind its last step.
      whole: whether all its data have been used.
    """

    cursor: Cursor
    whole: bool


@dataclasses.dataclass(frozen=True)
class EndedEpoch:
    """An epoch that has ended, with its evaluation.

    Attributes:
      cursor: behind its last step.
      logs: as callbacks get them.
      is_last: whether the training ends with it.
    """

    cursor: Cursor
    logs: Logs
    is_last: bool


class Observer:
    """Watches a training. All methods do nothing here.

    They are called on all workers of a round, in the thread that trains. What they take, everybody
    waits for. They neither direct the training nor change its state; where one does, it says so.
    An error that one raises ends the training; it may be a `CollectiveFailedError` only if all
    workers take part in the same collective.
    """

    root_only: ClassVar[bool] = False
    """Whether only rank 0 calls it, in the rounds in which it has that rank."""

    # --- rounds --------------------------------------------------------------------------

    def after_entering(self) -> None:
        """The worker no longer waits for a place: it has one, or there is none for it."""

    def on_round(self, entered: Round) -> None:
        """A round begins: Horovod is initialised, a checkpoint loaded, newcomers have no state."""

    def after_sync(self, entered: Round) -> None:
        """All workers of the round hold the same state; the master does not know of it yet."""

    def on_running(self, entered: Round) -> None:
        """The master has been told that this worker trains."""

    def on_failure(self, error: CollectiveFailedError) -> None:
        """A collective has failed; the state is that of the last step. The round is left next."""

    def after_round(self) -> None:
        """The round ends, whatever ends it; Horovod is still initialised."""

    def on_order_to_leave(self, parting: Parting) -> None:
        """This worker, which holds a state, gets no place any more: it, or the whole job, ends."""

    # --- steps and epochs ----------------------------------------------------------------

    def on_epoch(self, epoch: PresentEpoch) -> None:
        """An epoch begins, after `on_epoch_begin` of callbacks, or goes on in another round."""

    def before_step(self, cursor: Cursor) -> None:
        """The training step at `cursor` comes next; its callbacks have been called."""

    def on_commit(self, step: TakenStep) -> None:
        """A training step is part of the state; callbacks have not heard of it yet."""

    def after_step(self, step: TakenStep) -> None:
        """A training step is done, its callbacks, too. After it the round may end."""

    def after_evaluation_step(self, step: EvaluatedStep) -> None:
        """A step of an evaluation is done, its callbacks, too. After it the round may end."""

    def at_end_of_phase(self, cursor: Cursor) -> None:
        """All steps of the phase at `cursor`, training or evaluation, have been taken."""

    def after_training_phase(self, epoch: TrainedEpoch) -> None:
        """The training steps of an epoch are done: the state stands before its evaluation."""

    def after_epoch(self, epoch: EndedEpoch) -> None:
        """An epoch has ended, its callbacks have been called, the state stands before the next."""

    def on_end(self) -> None:
        """The training has ended, on all workers, after `on_train_end` of callbacks."""

    def close(self) -> None:
        """This worker is out of the training, with or without an error. Nothing else comes."""


class Observers:
    """The observers of one worker, in the order in which they hear of things.

    Iterating gives those that this worker calls, by its rank in the newest round.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)
        self._is_root = False

    def take_rank(self, rank: int) -> None:
        """A round begins in which this worker has the rank."""
        self._is_root = rank == 0

    def __iter__(self) -> Iterator[Observer]:
        return (o for o in self._observers if self._is_root or not o.root_only)
