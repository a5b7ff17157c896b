"""The beginnings and ends of the epochs of a `fit`, of which its data hear as in plain Keras.

A `keras.utils.PyDataset` may shuffle itself in its hooks, or a training and its validation may have
the same one. So each worker calls all hooks once and in Keras's order, also those of epochs that it
was not there for.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol


class HasHooks(Protocol):
    """Data that hear of their epochs, as a data adapter of Keras does."""

    def on_epoch_begin(self) -> None:
        """Keras begins to read an epoch."""

    def on_epoch_end(self) -> None:
        """Keras has read an epoch to its end, or resets the data before an evaluation."""

    def on_stop(self) -> None:
        """A callback has ended an epoch before its end, which Keras then does not come to."""


class Moment(enum.IntEnum):
    """When data hear of something, in the order within an epoch."""

    TRAINING_BEGINS = 0
    TRAINING_ENDS = 1
    EVALUATION_COMES = 2
    """Keras resets the data, and calls `on_test_begin` afterwards."""
    EVALUATION_BEGINS = 3
    EVALUATION_ENDS = 4


class EpochHooks:
    """Calls the hooks of the data of one `fit`.

    Args:
      train, evaluate: the data.
      evaluates_after: whether an epoch ends with an evaluation.
      initial_epoch: the first epoch.
    """

    def __init__(
        self,
        train: HasHooks,
        evaluate: HasHooks | None,
        evaluates_after: Callable[[int], bool],
        initial_epoch: int,
    ) -> None:
        self._train = train
        self._evaluate = evaluate
        self._evaluates_after = evaluates_after
        self._next = (initial_epoch, Moment.TRAINING_BEGINS)
        self.stopped = False
        """Whether a callback has ended the newest epoch within its training."""

    def come_to(self, epoch: int, moment: Moment) -> None:
        """Calls what is due up to a moment, that of the moment itself included."""
        while self._next <= (epoch, moment):
            self._call(*self._next)
            self._pass()

    def stop(self, epoch: int) -> None:
        """A callback has ended the training within an epoch: Keras does not call its end."""
        self.come_to(epoch, Moment.TRAINING_BEGINS)
        if self._next == (epoch, Moment.TRAINING_ENDS):
            self._train.on_stop()
            self._pass()
            self.stopped = True

    def _pass(self) -> None:
        epoch, moment = self._next
        last = moment is Moment.EVALUATION_ENDS
        self._next = (epoch + 1, Moment(0)) if last else (epoch, Moment(moment + 1))

    def _call(self, epoch: int, moment: Moment) -> None:
        data: HasHooks | None = self._train
        if moment >= Moment.EVALUATION_COMES:
            data = self._evaluate if self._evaluates_after(epoch) else None
        if data is None:
            return
        if moment in (Moment.TRAINING_BEGINS, Moment.EVALUATION_BEGINS):
            data.on_epoch_begin()
        else:
            data.on_epoch_end()
