"""The input of one worker in one round: its batches from a cursor on, with their cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.batch_plan import Share
from hvd_elastic_keras.data.example_source import ExampleSource
from hvd_elastic_keras.data.partition import Partition, Slice
from hvd_elastic_keras.data.passes import Passes
from hvd_elastic_keras.data.structure import Structure
from hvd_elastic_keras.errors import DataError
from hvd_elastic_keras.ledger import Ids, difference, id_set


@dataclasses.dataclass(frozen=True)
class LocalBatch:
    """One worker's part of one step: tensors of shape [stop - start, …] and their cut.

    Attributes:
      ids: shape [stop - start], int64, what these examples are called in a ledger.
      portions: sizes of the portions that all workers take together, by rank, where the batch grows
        with them.
    """

    data: Structure
    part: Slice
    ids: Any = ()
    portions: Sequence[int] = ()


class Input(Protocol):
    """What the training loop reads: the steps of an epoch, cut into micro-batches."""

    @property
    def batch_spec(self) -> Structure:
        """Specs of a batch of any size; None where batches have nothing."""

    @property
    def global_batch_size(self) -> int:
        """Examples of a full global batch."""

    @property
    def micro_batch_size(self) -> int:
        """Examples of a full micro-batch."""

    @property
    def num_examples(self) -> int | None:
        """Examples of a pass; None if only reading to the end would tell."""

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a full global batch: the most workers that have something to do."""

    @property
    def batches_per_pass(self) -> int | None:
        """Global batches in one pass over the data; None as long as nobody knows."""

    @property
    def from_front(self) -> bool:
        """Whether a step is reached only by reading what lies before it in its pass."""

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        """Reads what lies before a step, where it has to be read, as long as `goes_on` says so.

        `step` is counted as in `batches`. Another thread must not use this input meanwhile.
        """

    @property
    def ends_unannounced(self) -> bool:
        """Whether only reading to the end tells how long a pass is, and each pass anew."""

    def know_batches_per_pass(self, count: int | None) -> None:
        """Learns from another worker what reading to the end would tell."""

    def expect_batches_per_pass(self, count: int | None) -> None:
        """Learns the same from a checkpoint. Reading raises `DataError` if it is not so now."""

    def confirm_end(self) -> None:
        """All workers have come to the end of a pass where this one has: all are as long."""

    def cut_off(self, epoch: int) -> bool:
        """Whether the pass of an epoch that has ended has more batches than those before it."""

    def steps(self, epoch: int) -> int | None:
        """Steps of an epoch; None if only reading to the end tells."""

    def batches(self, epoch: int, share: Share, first_step: int) -> Iterator[LocalBatch]:
        """This worker's batches of an epoch from `first_step` on, to its end."""

    def first_batch(self) -> Structure:
        """The first global batch of the training."""

    def part(self, step: int, share: Share, num_examples: int) -> Slice:
        """What a worker with this share has of a step of so many examples, all together."""

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        """Ids of the examples of some steps of an epoch.

        Args:
          steps: number and examples of each.

        Returns:
          In the order of micro-batches: shape [examples] each.
        """

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        """Ids of all examples of a whole epoch; None if only its steps tell."""


class Pipeline:
    """Cuts a source of single examples into the steps of an epoch; the same for every worker.

    Args:
      drop_remainder: whether to leave out the last step of an epoch if it would be smaller.

    Raises:
      DataError: nothing would be left.
    """

    def __init__(
        self,
        source: ExampleSource,
        global_batch_size: int,
        micro_batch_size: int,
        drop_remainder: bool = False,
    ) -> None:
        self.source = source
        count = source.num_examples
        used = count - count % global_batch_size if drop_remainder else count
        if not used:
            raise DataError(
                f"drop_remainder leaves no step of an epoch of {count} examples with batches of "
                f"{global_batch_size}. Use batches of at most {count}, or leave drop_remainder out."
            )
        self.partition = Partition(used, global_batch_size, micro_batch_size)
        self._first: Structure = None

    @property
    def batch_spec(self) -> Structure:
        """See `Input`."""
        return self.source.batch_spec

    @property
    def global_batch_size(self) -> int:
        """See `Input`."""
        return self.partition.global_batch_size

    @property
    def micro_batch_size(self) -> int:
        """See `Input`."""
        return self.partition.micro_batch_size

    @property
    def num_examples(self) -> int | None:
        """See `Input`."""
        return self.partition.num_examples

    @property
    def num_micro_batches(self) -> int:
        """See `Input`."""
        return self.partition.num_micro_batches

    @property
    def batches_per_pass(self) -> int | None:
        """See `Input`."""
        return self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the smaller last one included."""
        return self.partition.steps_per_epoch

    @property
    def from_front(self) -> bool:
        """See `Input`."""
        return self.source.from_front

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        """See `Input`."""
        self.source.read_up_to(epoch, self.partition, step, goes_on)

    @property
    def ends_unannounced(self) -> bool:
        """See `Input`."""
        return False

    def know_batches_per_pass(self, count: int | None) -> None:
        """It is known already."""

    def expect_batches_per_pass(self, count: int | None) -> None:
        """It is known already."""

    def confirm_end(self) -> None:
        """It is known already."""

    def cut_off(self, epoch: int) -> bool:
        """See `Input`. The source refuses epochs of different lengths."""
        return False

    def steps(self, epoch: int) -> int | None:
        """See `Input`."""
        return self.steps_per_epoch

    def batches(self, epoch: int, share: Share, first_step: int) -> Iterator[LocalBatch]:
        """See `Input`."""
        self._first = None  # asked for before the training only
        batches = self.source.batches(epoch, self.partition, share, first_step)
        for step in range(first_step, self.steps_per_epoch):
            ids, data = next(batches)
            yield LocalBatch(data, self.partition.slice_of(step, share.first, share.last), ids)

    def first_batch(self) -> Structure:
        """See `Input`."""
        if self._first is None:
            # Of an epoch without further steps: nothing is read ahead.
            size = self.partition.examples_of_step(0)
            alone = dataclasses.replace(self.partition, num_examples=size)
            whole = Share(0, self.num_micro_batches)
            _, self._first = next(self.source.batches(0, alone, whole, 0))
        return self._first

    def part(self, step: int, share: Share, num_examples: int) -> Slice:
        """See `Input`."""
        return self.partition.slice_of(step, share.first, share.last)

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        """See `Input`. The order takes little longer for all at once than for one."""
        size = self.global_batch_size
        positions = [np.arange(step * size, step * size + count) for step, count in steps]
        ends = np.cumsum([count for _, count in steps])[:-1]
        return np.split(self._ids(epoch, np.concatenate(positions)), ends)

    def ids_of_epoch(self, epoch: int) -> Iterable[int]:
        """See `Input`."""
        used, count = self.partition.num_examples, self.source.num_examples
        if used == count:
            return range(count)
        left_out = self._ids(epoch, np.arange(used, count))
        return difference(id_set(range(count)), id_set(left_out))

    def _ids(self, epoch: int, positions: Ids) -> Ids:
        found: Ids = self.source.order(epoch).indices(tf.constant(positions, tf.int64)).numpy()
        return found


class FitInput:
    """The input of one `fit`: its epochs laid on the passes over the data.

    Args:
      inner: reads the passes.
      passes: how epochs lie on them.
      index_of: number of an epoch, counted from the first one that reads this input.
    """

    def __init__(self, inner: Input, passes: Passes, index_of: Callable[[int], int]) -> None:
        self._inner = inner
        self._passes = passes
        self._index_of = index_of

    @property
    def batch_spec(self) -> Structure:
        """See `Input`."""
        return self._inner.batch_spec

    @property
    def global_batch_size(self) -> int:
        """See `Input`."""
        return self._inner.global_batch_size

    @property
    def micro_batch_size(self) -> int:
        """See `Input`."""
        return self._inner.micro_batch_size

    @property
    def num_examples(self) -> int | None:
        """See `Input`."""
        return self._inner.num_examples

    @property
    def num_micro_batches(self) -> int:
        """See `Input`."""
        return self._inner.num_micro_batches

    @property
    def batches_per_pass(self) -> int | None:
        """See `Input`."""
        return self._inner.batches_per_pass

    @property
    def from_front(self) -> bool:
        """See `Input`."""
        return self._inner.from_front

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        """See `Input`."""
        stretch = self._passes.stretch(self._index_of(epoch), self.batches_per_pass)
        self._inner.read_up_to(stretch.number, stretch.offset + step, goes_on)

    @property
    def ends_unannounced(self) -> bool:
        """See `Input`."""
        return self._inner.ends_unannounced

    def know_batches_per_pass(self, count: int | None) -> None:
        """See `Input`."""
        self._inner.know_batches_per_pass(count)

    def expect_batches_per_pass(self, count: int | None) -> None:
        """See `Input`."""
        self._inner.expect_batches_per_pass(count)

    def confirm_end(self) -> None:
        """See `Input`."""
        self._inner.confirm_end()

    def cut_off(self, epoch: int) -> bool:
        """See `Input`."""
        stretch = self._passes.stretch(self._index_of(epoch), self.batches_per_pass)
        return self._inner.cut_off(stretch.number)

    def steps(self, epoch: int) -> int | None:
        """See `Input`."""
        return self._passes.stretch(self._index_of(epoch), self.batches_per_pass).steps

    def batches(self, epoch: int, share: Share, first_step: int) -> Iterator[LocalBatch]:
        """See `Input`."""
        stretch = self._passes.stretch(self._index_of(epoch), self.batches_per_pass)
        if stretch.steps is not None and first_step >= stretch.steps:
            return
        batches = self._inner.batches(stretch.number, share, stretch.offset + first_step)
        step = first_step
        # Not one batch more than asked for: it might take long, or be the end of a generator.
        while stretch.steps is None or step < stretch.steps:
            batch = next(batches, None)
            if batch is None:
                return
            yield batch
            step += 1

    def first_batch(self) -> Structure:
        """See `Input`."""
        return self._inner.first_batch()

    def part(self, step: int, share: Share, num_examples: int) -> Slice:
        """See `Input`."""
        return self._inner.part(step, share, num_examples)

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        """See `Input`."""
        stretch = self._passes.stretch(self._index_of(epoch), self.batches_per_pass)
        of_pass = [(stretch.offset + step, count) for step, count in steps]
        return self._inner.ids(stretch.number, of_pass)

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        """See `Input`."""
        stretch = self._passes.stretch(self._index_of(epoch), self.batches_per_pass)
        whole = not stretch.offset and stretch.steps == self.batches_per_pass
        return self._inner.ids_of_epoch(stretch.number) if whole else None
