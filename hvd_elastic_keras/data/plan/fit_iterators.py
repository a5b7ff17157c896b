"""The iterators that Keras makes over the data of a `fit`, one after the other. Pure numbers.

A dataset that is shuffled anew each time it is read gives each iterator the next seeds. So a pass
has the order of plain `fit` if its iterator has the same number; some are never read there. (As
`EpochIterator` of Keras.)
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence

from hvd_elastic_keras.data.plan.fit_passes import Passes


class Reader(enum.Enum):
    """Who reads a dataset in a `fit`."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclasses.dataclass(frozen=True)
class MadeIterator:
    """An iterator that Keras makes.

    Attributes:
      epoch: in which it is made, counted from the first one of this `fit`.
      reads: the pass that is read from it, by reader and number; None: nobody reads from it.
    """

    epoch: int
    reads: tuple[Reader, int] | None


@dataclasses.dataclass(frozen=True)
class FitIterators:
    """The iterators of one dataset in one `fit`.

    Attributes:
      train: how the epochs lie on passes, if the training reads this dataset.
      evaluate: the same of evaluations.
      batches: of the dataset, if it says how many; None if not, or if they have no end.
      epochs: of the fit.
      evaluated: the epochs that end with an evaluation, counted as `MadeIterator.epoch`.
    """

    train: Passes | None
    evaluate: Passes | None
    batches: int | None
    epochs: int
    evaluated: Sequence[int]

    def __iter__(self) -> Iterator[MadeIterator]:
        evaluated = {epoch: number for number, epoch in enumerate(self.evaluated)}
        for epoch in range(self.epochs):
            if self.train is not None:
                yield from self._of_training(self.train, epoch)
            if self.evaluate is not None and epoch in evaluated:
                number = evaluated[epoch]
                yield MadeIterator(epoch, (Reader.EVALUATION, number))
                if self._ends(self.evaluate, number):
                    yield MadeIterator(epoch, None)

    def _of_training(self, train: Passes, epoch: int) -> Iterator[MadeIterator]:
        of_pass = train.range_of_epoch(epoch, self.batches)
        one_pass = train.steps_per_epoch is None
        if one_pass or epoch == 0:
            yield MadeIterator(epoch, (Reader.TRAINING, of_pass.number))
        if self._ends(train, epoch):
            following = (Reader.TRAINING, of_pass.number + 1)
            yield MadeIterator(epoch, None if one_pass else following)

    def _ends(self, passes: Passes, index: int) -> bool:
        """Whether Keras sees that a pass has ended, and makes the next iterator at once."""
        of_pass = passes.range_of_epoch(index, self.batches)
        return self.batches is not None and of_pass.offset + (of_pass.steps or 0) >= self.batches

    def index_of(self, reader: Reader, number: int) -> int:
        """How many are made before that of a pass."""
        index = -1
        for index, made in enumerate(self):
            if made.reads == (reader, number):
                return index
        return index + 1

    def training_before(self, index: int) -> int:
        """The last one before number `index` that the training reads; -1 if there is none."""
        numbers = [i for i, made in zip(range(index), self, strict=False) if _trains(made)]
        return numbers[-1] if numbers else -1

    def ends_with_training(self, number: int) -> bool:
        """Whether one is made at the end of the training of the epoch of that evaluation."""
        return self.train is not None and self._ends(self.train, self.evaluated[number])

    def made_by(self, reader: Reader, count: int, *, stopped: bool = False) -> int:
        """How many are made in so many epochs, or up to the epoch of so many evaluations.

        Args:
          stopped: whether a callback has ended the last one within its training.
        """
        epochs = count
        if reader is Reader.EVALUATION:
            epochs = self.evaluated[count - 1] + 1 if count else 0
        made = [m for m in self if m.epoch < epochs]
        at_end = stopped and self.train is not None and self._ends(self.train, epochs - 1)
        return len(made) - at_end


def _trains(made: MadeIterator) -> bool:
    return made.reads is not None and made.reads[0] is Reader.TRAINING
