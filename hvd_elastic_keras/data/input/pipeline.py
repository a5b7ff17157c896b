"""The input of one worker in one round: its batches from a cursor on, and their micro-batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.input.interfaces import LocalBatch, Moment
from hvd_elastic_keras.data.plan.example_ids import Ids, difference, id_set
from hvd_elastic_keras.data.plan.partition import Partition, StepShare
from hvd_elastic_keras.data.sources.source import ExampleSource


class Pipeline:
    """Cuts a source of single examples into the steps of an epoch, in the same way on every worker.

    Args:
      drop_remainder: whether to leave out the last step of an epoch if it would be smaller.

    Raises:
      DataError: `drop_remainder` would leave no step.
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
        return self.source.batch_spec

    @property
    def per_row(self) -> None:
        """None: sources give single examples."""

    @property
    def nothing(self) -> Structure:
        return structure.empty(self.batch_spec)

    @property
    def global_batch_size(self) -> int:
        return self.partition.global_batch_size

    @property
    def has_one_size(self) -> bool:
        """As in Keras's batches of arrays."""
        return self.partition.num_examples % self.global_batch_size == 0

    @property
    def micro_batch_size(self) -> int:
        return self.partition.micro_batch_size

    @property
    def num_examples(self) -> int | None:
        return self.partition.num_examples

    @property
    def num_micro_batches(self) -> int:
        return self.partition.num_micro_batches

    def cut_into(self, micro_batch_size: int) -> None:
        self.partition = dataclasses.replace(self.partition, micro_batch_size=micro_batch_size)

    @property
    def batches_per_pass(self) -> int | None:
        return self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, including a smaller last one."""
        return self.partition.steps_per_epoch

    @property
    def log(self) -> BatchLog | None:
        return self.source.log

    @property
    def from_front(self) -> bool:
        return self.source.from_front

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        self.source.read_up_to(epoch, self.partition, step, goes_on)

    @property
    def ends_unannounced(self) -> bool:
        return False

    def know_batches_per_pass(self, count: int | None) -> None:
        """Does nothing: the number is already known."""

    def expect_batches_per_pass(self, count: int | None) -> None:
        """Does nothing: the number is already known."""

    def confirm_end(self) -> None:
        """Does nothing: the number is already known."""

    def cut_off(self, epoch: int) -> bool:
        """Returns False: the source refuses epochs of different lengths."""
        return False

    def steps(self, epoch: int) -> int | None:
        return self.steps_per_epoch

    def batches(
        self, epoch: int, share: Share, first_step: int, stop: int | None = None
    ) -> Iterator[LocalBatch]:
        self._first = None  # only needed before the training
        batches = self.source.batches(epoch, self.partition, share, first_step)
        last = self.steps_per_epoch if stop is None else min(stop, self.steps_per_epoch)
        for step in range(first_step, last):
            ids, data = next(batches)
            yield LocalBatch(data, self.partition.step_share(step, share.first, share.last), ids)

    def first_batch(self) -> Structure:
        if self._first is None:
            # This pretends that the epoch has no further steps, so that only data in memory are
            # read ahead.
            size = self.partition.examples_of_step(0)
            alone = dataclasses.replace(self.partition, num_examples=size)
            whole = Share(0, self.num_micro_batches)
            _, self._first = next(self.source.batches(0, alone, whole, 0))
        return self._first

    def come_to(self, epoch: int, moment: Moment) -> None:
        """Does nothing: sources have no hooks."""

    def stop(self, epoch: int) -> None:
        """Does nothing: sources have no hooks."""

    def finish(self, epoch: int) -> None:
        self.source.finish(epoch)

    def on_epoch_begin(self) -> None:
        """Does nothing: sources have no hooks."""

    def on_epoch_end(self) -> None:
        """Does nothing: sources have no hooks."""

    def on_stop(self) -> None:
        """Does nothing: sources have no hooks."""

    def finish_epochs(self, epochs: int, *, stopped: bool) -> None:
        self.source.finish(epochs)

    def part(self, step: int, share: Share, num_examples: int) -> StepShare:
        return self.partition.step_share(step, share.first, share.last)

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        """See `ExamplePlan`. Computes all steps at once: that takes little longer than one step."""
        size = self.global_batch_size
        positions = [np.arange(step * size, step * size + count) for step, count in steps]
        ends = np.cumsum([count for _, count in steps])[:-1]
        return np.split(self._ids(epoch, np.concatenate(positions)), ends)

    def ids_of_epoch(self, epoch: int) -> Iterable[int]:
        used, count = self.partition.num_examples, self.source.num_examples
        if used == count:
            return range(count)
        left_out = self._ids(epoch, np.arange(used, count))
        return difference(id_set(range(count)), id_set(left_out))

    def _ids(self, epoch: int, positions: Ids) -> Ids:
        found: Ids = self.source.order(epoch).indices(tf.constant(positions, tf.int64)).numpy()
        return found
