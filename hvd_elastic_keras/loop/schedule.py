"""How long a training is and when it evaluates. Pure numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from hvd_elastic_keras.state.cursor import Cursor


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The length of a training and the times of its evaluations.

    The values come from `TrainingConfig` or from the arguments of `fit`.

    Attributes:
      epochs: the training ends before the epoch of this number; None if only `steps` bounds it.
      steps: optimizer steps in all; None if only `epochs` bounds the training.
      initial_epoch: the first epoch.
      validation_freq: number of epochs from one evaluation to the next, or the epochs (from 1)
        that end with an evaluation.
      steps_per_execution: number of steps for which the batch hooks of callbacks are called once.
      ends_with_last: whether the batch-end hook gets the number of the last of these steps, or of
        the first (older releases of Keras).
    """

    epochs: int | None
    steps: int | None = None
    initial_epoch: int = 0
    validation_freq: int | Collection[int] = 1
    steps_per_execution: int = 1
    ends_with_last: bool = True

    def evaluates_after(self, epoch: int) -> bool:
        """Whether epoch number `epoch` (from 0) ends with an evaluation."""
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq

    def evaluations_before(self, epoch: int) -> int:
        """Evaluations from `initial_epoch` up to the start of `epoch`."""
        return self._evaluations(self.initial_epoch, epoch)

    def _evaluations(self, begin: int, end: int) -> int:
        """Evaluations from the start of epoch `begin` to the start of epoch `end`."""
        if isinstance(self.validation_freq, int):
            return end // self.validation_freq - begin // self.validation_freq
        return sum(begin < number <= end for number in set(self.validation_freq))

    def starts_execution(self, step: int) -> bool:
        """Whether the batch-begin hooks are called before this step of an epoch."""
        return step % self.steps_per_execution == 0

    def ends_execution(self, step: int) -> bool:
        """Whether the batch-end hooks are called after this step of an epoch.

        They are always called after the last step of an epoch; the caller sees to that.
        """
        return (step + 1) % self.steps_per_execution == 0

    def number_at_end(self, step: int) -> int:
        """The number that the batch-end hook after `step` gets.

        >>> Schedule(epochs=1, steps_per_execution=4).number_at_end(5)
        7
        """
        first = step - step % self.steps_per_execution
        return first + self.steps_per_execution - 1 if self.ends_with_last else first

    def is_over(self, epochs_done: int, steps_done: int) -> bool:
        """Whether training ends here, unless it is ended earlier."""
        return (self.epochs is not None and epochs_done >= self.epochs) or (
            self.steps is not None and steps_done >= self.steps
        )

    def cuts(self, cursor: Cursor, in_data: int | None) -> bool:
        """Whether `steps` ends training at `cursor`, within an epoch of `in_data` steps.

        >>> Schedule(epochs=None, steps=25).cuts(Cursor(step=5, global_step=25), 10)
        True
        """
        ends = self.steps is not None and cursor.global_step >= self.steps
        return ends and (in_data is None or cursor.step < in_data)

    def steps_of_epoch(self, cursor: Cursor, in_data: int | None) -> int | None:
        """Steps of the epoch at `cursor`; None if unknown.

        Args:
          in_data: steps that the data have for this epoch; None if unknown.

        >>> Schedule(epochs=None, steps=25).steps_of_epoch(Cursor(step=3, global_step=23), 10)
        5
        """
        if self.steps is None:
            return in_data
        limit = cursor.step + self.steps - cursor.global_step
        return limit if in_data is None else min(in_data, limit)

    def steps_left(self, cursor: Cursor, in_this: int | None, in_next: int | None) -> int | None:
        """Steps until the end; None if the length of an epoch is unknown.

        Args:
          in_this, in_next: steps that the data have for the epoch at `cursor`, and for each later
            epoch.

        >>> Schedule(epochs=3).steps_left(Cursor(epoch=1, step=4), 10, 10)
        16
        """
        bounds = []
        if self.epochs is not None and in_this is not None and in_next is not None:
            bounds.append(in_this - cursor.step + (self.epochs - cursor.epoch - 1) * in_next)
        if self.steps is not None:
            bounds.append(self.steps - cursor.global_step)
        return max(0, min(bounds)) if bounds else None

    def evaluations_left(self, cursor: Cursor, in_this: int | None, in_next: int | None) -> int:
        """Evaluations until the end, including the one of the epoch at `cursor`.

        If the length of an epoch is unknown, counts up to `epochs`, or returns 0 without `epochs`.

        Args:
          in_this, in_next: see `steps_left`.

        >>> Schedule(epochs=9, validation_freq=2).evaluations_left(Cursor(epoch=3), 10, 10)
        3
        >>> Schedule(epochs=None, steps=25).evaluations_left(Cursor(step=5, global_step=5), 10, 10)
        3
        """
        ends = [] if self.epochs is None else [self.epochs]
        left = self.steps_left(cursor, in_this, in_next)
        if left is not None and in_this is not None and in_next:
            later = max(0, left - (in_this - cursor.step))
            ends.append(cursor.epoch + 1 - (-later // in_next))
        return self._evaluations(cursor.epoch, max(cursor.epoch, min(ends))) if ends else 0
