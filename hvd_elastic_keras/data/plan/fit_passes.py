"""Maps the epochs of `keras.Model.fit` to passes over its input. Pure functions of numbers.

Without `steps_per_epoch`, an epoch is one pass. With it, an epoch takes `steps_per_epoch` batches,
and the next epoch continues after them. The end of a pass also ends its epoch. This follows
`EpochIterator` of Keras.

`FitIterators` numbers the iterators that Keras makes over the data of a `fit`. A dataset that is
shuffled anew each time it is read gives each iterator the next seeds. A pass therefore has the
order of plain `fit` if its iterator has the same number. Plain `fit` also makes some iterators that
it never reads. The numbers follow `EpochIterator` of Keras.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence


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


class Reader(enum.Enum):
    """The two readers of a dataset in a `fit`."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclasses.dataclass(frozen=True)
class MadeIterator:
    """An iterator that Keras makes.

    Attributes:
      epoch: the epoch in which it is made, counted from the first one of this `fit`.
      reader: whose data it reads.
      number: the pass that is read from it; None if it is never read.
    """

    epoch: int
    reader: Reader
    number: int | None


@dataclasses.dataclass(frozen=True)
class FitIterators:
    """The iterators of one dataset in one `fit`, or of two datasets that share a `shuffle`.

    Attributes:
      train: the rule that maps epochs to passes, if the training reads this dataset.
      evaluate: the rule that maps evaluations to passes, if the evaluation reads this dataset.
      batches: number of batches of the data by reader; None if unknown or infinite.
      epochs: number of epochs of the `fit`.
      evaluated: the epochs that end with an evaluation, counted as in `MadeIterator.epoch`.
    """

    train: Passes | None
    evaluate: Passes | None
    batches: Mapping[Reader, int | None]
    epochs: int
    evaluated: Sequence[int]

    def __iter__(self) -> Iterator[MadeIterator]:
        evaluated = {epoch: number for number, epoch in enumerate(self.evaluated)}
        for epoch in range(self.epochs):
            if self.train is not None:
                yield from self._of_training(self.train, epoch)
            if self.evaluate is not None and epoch in evaluated:
                number = evaluated[epoch]
                yield MadeIterator(epoch, Reader.EVALUATION, number)
                if self._ends(Reader.EVALUATION, number):
                    yield MadeIterator(epoch, Reader.EVALUATION, None)

    def _of_training(self, train: Passes, epoch: int) -> Iterator[MadeIterator]:
        of_pass = train.range_of_epoch(epoch, self.batches[Reader.TRAINING])
        one_pass = train.steps_per_epoch is None
        if one_pass or epoch == 0:
            yield MadeIterator(epoch, Reader.TRAINING, of_pass.number)
        if self._ends(Reader.TRAINING, epoch):
            following = None if one_pass else of_pass.number + 1
            yield MadeIterator(epoch, Reader.TRAINING, following)

    def _ends(self, reader: Reader, index: int) -> bool:
        """Returns whether Keras notices the end of a pass, and makes the next iterator at once."""
        passes = self.train if reader is Reader.TRAINING else self.evaluate
        batches = self.batches[reader]
        if passes is None or batches is None:
            return False
        of_pass = passes.range_of_epoch(index, batches)
        return of_pass.offset + (of_pass.steps or 0) >= batches

    def reader_of(self, index: int) -> Reader:
        """Returns whose data iterator number `index` reads."""
        made = next(itertools.islice(self, index, None), None)
        return Reader.TRAINING if made is None else made.reader

    def batches_read(self, index: int) -> int | None:
        """Returns how many batches are read from iterator number `index`; None if all are."""
        made = next(itertools.islice(self, index, None), None)
        if made is None or made.number is None:
            return 0
        passes = self.train if made.reader is Reader.TRAINING else self.evaluate
        batches = self.batches[made.reader]
        if passes is None or passes.steps_per_epoch is None:
            return None
        count = self.epochs if made.reader is Reader.TRAINING else len(self.evaluated)
        ranges = (passes.range_of_epoch(number, batches) for number in range(count))
        read = sum(r.steps or 0 for r in ranges if r.number == made.number)
        return None if read == batches else read

    def index_of(self, reader: Reader, number: int) -> int:
        """Returns how many iterators are made before the iterator of a pass."""
        index = -1
        for index, made in enumerate(self):
            if (made.reader, made.number) == (reader, number):
                return index
        return index + 1

    def training_before(self, index: int) -> int:
        """Returns the last iterator before `index` that the training reads; -1 if there is none."""
        numbers = [i for i, made in zip(range(index), self, strict=False) if _trains(made)]
        return numbers[-1] if numbers else -1

    def ends_with_training(self, number: int) -> bool:
        """Returns whether an iterator is made when the training of the evaluation's epoch ends.

        Args:
          number: number of the evaluation.
        """
        return self._ends(Reader.TRAINING, self.evaluated[number])

    def made_by(self, reader: Reader, count: int, *, stopped: bool = False) -> int:
        """Returns how many iterators are made in `count` epochs, or until `count` evaluations.

        Args:
          reader: says whether `count` counts epochs (training) or evaluations.
          stopped: whether a callback has ended the last epoch during its training.
        """
        epochs = count
        if reader is Reader.EVALUATION:
            epochs = self.evaluated[count - 1] + 1 if count else 0
        made = [m for m in self if m.epoch < epochs]
        at_end = stopped and self._ends(Reader.TRAINING, epochs - 1)
        return len(made) - at_end


def _trains(made: MadeIterator) -> bool:
    return made.reader is Reader.TRAINING and made.number is not None
