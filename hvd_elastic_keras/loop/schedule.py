"""How long a training is and when it evaluates. Pure numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from hvd_elastic_keras.state.cursor import Cursor


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What the training loop follows, from `TrainingConfig` or from the arguments of `fit`.

    Attributes:
      epochs: the epoch before which training ends; None if only `steps` bounds it.
      steps: optimizer steps in all; None if only `epochs` bounds the training.
      initial_epoch: the first epoch.
      validation_freq: evaluate after every so many epochs, or after the epochs (from 1) in it.
      steps_per_execution: call batch hooks of callbacks once for so many steps.
      ends_with_last: whether the hook at the end of several steps gets the number of the last of
        them, or of the first (older releases of Keras).
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
        """Evaluations from the start of the epoch `begin` to that of `end`."""
        if isinstance(self.validation_freq, int):
            return end // self.validation_freq - begin // self.validation_freq
        return sum(begin < number <= end for number in set(self.validation_freq))

    def starts_execution(self, step: int) -> bool:
        """Whether the batch hooks begin with this step of an epoch."""
        return step % self.steps_per_execution == 0

    def ends_execution(self, step: int) -> bool:
        """Whether the batch hooks end with this step (the last one of an epoch always does)."""
        return (step + 1) % self.steps_per_execution == 0

    def number_at_end(self, step: int) -> int:
        """The number that the batch-end hook after `step` gets.

        >>> Schedule(epochs=1, steps_per_execution=4).number_at_end(5)
        7
        """
        first = step - step % self.steps_per_execution
        return first + self.steps_per_execution - 1 if self.ends_with_last else first

    def is_over(self, epochs_done: int, steps_done: int) -> bool:
        """Whether training ends here, if nobody ends it before."""
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
        """Steps of the epoch at `cursor`, of which the data give `in_data`; None: nobody knows.

        >>> Schedule(epochs=None, steps=25).steps_of_epoch(Cursor(step=3, global_step=23), 10)
        5
        """
        if self.steps is None:
            return in_data
        limit = cursor.step + self.steps - cursor.global_step
        return limit if in_data is None else min(in_data, limit)

    def steps_left(self, cursor: Cursor, in_this: int | None, in_next: int | None) -> int | None:
        """Steps until the end; None if nobody knows how long an epoch is.

        Args:
          in_this, in_next: steps that the data give in the epoch at `cursor` and in later ones.

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
        """Evaluations until the end, that of the epoch at `cursor` included.

        As far as they are known: if nobody knows how long an epoch is, those of `epochs`, or none.

        Args:
          in_this, in_next: as of `steps_left`.

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
