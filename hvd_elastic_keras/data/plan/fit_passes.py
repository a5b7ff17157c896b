"""Maps the epochs of `keras.Model.fit` to passes over its input. Pure functions of numbers.

Without `steps_per_epoch`, an epoch is one pass. With it, an epoch takes `steps_per_epoch` batches,
and the next epoch continues after them. The end of a pass also ends its epoch. This follows
`EpochIterator` of Keras.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PassRange:
    """The batches of one epoch: `steps` of pass `number`, from batch `offset` on.

    `steps` is None if the number is only known after reading to the end of the pass.
    """

    number: int
    offset: int
    steps: int | None


@dataclasses.dataclass(frozen=True)
class Passes:
    """The rule that maps the epochs of one `fit` to passes.

    Attributes:
      steps_per_epoch: as given to `fit`; None if an epoch is one pass.
      goes_on: whether an epoch continues where the last one ended (training), or always starts at
        the front (validation).
    """

    steps_per_epoch: int | None = None
    goes_on: bool = True

    def range_of_epoch(self, index: int, batches_per_pass: int | None) -> PassRange:
        """Returns the batches of epoch number `index`, counted from the first one of this `fit`.

        `batches_per_pass` is None if it is unknown or infinite.

        >>> [Passes(4).range_of_epoch(e, 10) for e in range(2, 4)]
        [PassRange(number=0, offset=8, steps=2), PassRange(number=1, offset=0, steps=4)]
        """
        steps = self.steps_per_epoch
        if steps is None:
            return PassRange(index, 0, batches_per_pass)
        if not self.goes_on:
            return PassRange(index, 0, min(steps, batches_per_pass or steps))
        if batches_per_pass is None:
            return PassRange(0, index * steps, steps)
        epochs_per_pass = -(-batches_per_pass // steps)
        number, epoch = divmod(index, epochs_per_pass)
        offset = epoch * steps
        return PassRange(number, offset, min(steps, batches_per_pass - offset))
