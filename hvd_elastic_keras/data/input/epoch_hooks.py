"""Calls the hooks of the data at the beginnings and ends of epochs, as in plain Keras.

A `keras.utils.PyDataset` may shuffle itself in its hooks, and a training and its validation may
share one. Therefore each worker calls all hooks once and in Keras's order, including the hooks of
epochs that it has missed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol


class HasHooks(Protocol):
    """Data with hooks for the beginnings and ends of epochs, like a data adapter of Keras."""

    def on_epoch_begin(self) -> None:
        """Called when Keras begins to read an epoch."""

    def on_epoch_end(self) -> None:
        """Called when Keras has read an epoch to its end, or resets data for an evaluation."""

    def on_stop(self) -> None:
        """Called when a callback has stopped an epoch early: Keras then never reaches its end."""


class Moment(enum.IntEnum):
    """The moments at which hooks are called, in their order within an epoch."""

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
        """Whether a callback has ended the newest epoch during its training."""

    def come_to(self, epoch: int, moment: Moment) -> None:
        """Calls all hooks that are due up to a moment, including the hook of the moment itself."""
        while self._next <= (epoch, moment):
            self._call(*self._next)
            self._pass()

    def stop(self, epoch: int) -> None:
        """Notes that a callback has ended the training within an epoch: its end is not called."""
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
