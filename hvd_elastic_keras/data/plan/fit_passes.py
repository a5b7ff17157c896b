"""How the epochs of `keras.Model.fit` lie on the passes over its input. Pure numbers.

Without `steps_per_epoch` an epoch is one pass. With it, an epoch takes so many batches and the
next one goes on from there; a pass that ends ends its epoch, too. (As `EpochIterator` of Keras.)
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PassRange:
    """The batches of one epoch: `steps` of pass `number`, from batch `offset` on.

    `steps` is None if only reading to the end of the pass tells.
    """

    number: int
    offset: int
    steps: int | None


@dataclasses.dataclass(frozen=True)
class Passes:
    """The rule of one `fit`.

    Attributes:
      steps_per_epoch: as given to `fit`; None if an epoch is one pass.
      goes_on: whether an epoch goes on where the last one ended (training), or always starts at
        the front (validation).
    """

    steps_per_epoch: int | None = None
    goes_on: bool = True

    def range_of_epoch(self, index: int, batches_per_pass: int | None) -> PassRange:
        """The batches of epoch number `index`, counted from the first one of this `fit`.

        `batches_per_pass` is None if it is unknown, or infinite.

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
