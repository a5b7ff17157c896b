"""A source of single examples from a `tf.data.Dataset`, which is read from the front."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.preparation import (
    AHEAD,
    Preparation,
    Preprocess,
    prepared_ahead,
)
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.order import Order
from hvd_elastic_keras.data.plan.partition import Partition, StepShare
from hvd_elastic_keras.data.sources import cache_files
from hvd_elastic_keras.data.sources.iterators import (
    DatasetFactory,
    NumberedIterators,
    as_numbers,
    check_order,
    counted,
)
from hvd_elastic_keras.data.sources.reader import PREFETCH, BatchReader
from hvd_elastic_keras.keras_internals.dataset_parts import caches_in_files

Part = tuple[StepShare, Structure]
"""A worker's part of a step."""


class DatasetSource:
    """Any deterministic `tf.data.Dataset` of single examples, read from the front.

    Every worker reads all global batches and uses its part of each. A change of membership
    therefore needs no restart, and a newcomer replays the epoch up to the cursor. Expensive work
    belongs in `preprocess`: it runs on a worker's own examples only, and not in a replay.

    Args:
      factory: returns the dataset of an epoch, in the same order on every worker.
      name: name of the data, for messages.
      preprocess: turns an example of the dataset into `(x, y)`, in TensorFlow operations.
      num_examples: number of examples, if it has been counted for a dataset that does not tell it.
      must_repeat: whether to refuse a dataset that has another order in another process.

    Raises:
      DataError: examples have no common shape, the dataset is empty, or it is infinite.
    """

    from_front = True

    def __init__(
        self,
        factory: DatasetFactory,
        name: str,
        preprocess: Preprocess | None = None,
        *,
        num_examples: int | None = None,
        must_repeat: bool = False,
    ) -> None:
        dataset = factory(0)
        _check_elements(dataset, name)
        if must_repeat:
            check_order(dataset, f"The dataset of {name}")
        cardinality = _cardinality(dataset, name)
        # The iterator that counts the examples has a number in every process, even in one that does
        # not need to count.
        before = 0 if cardinality is not None else 1
        self._name = name
        self._iterators = NumberedIterators(factory, name, before=before)
        self.num_examples = cardinality or num_examples or self._counted()
        self._preparation = (
            Preparation(preprocess, dataset.element_spec, name) if preprocess else None
        )
        self._raw_spec = tf.nest.map_structure(structure.batch_of, dataset.element_spec)
        self.batch_spec = self._preparation.batch_spec if self._preparation else self._raw_spec
        self.log = BatchLog()
        self._is_exclusive = caches_in_files(dataset)
        self._readers: dict[int, BatchReader] = {}
        """Readers by batch size. There is only one unless batches of another size are asked for."""

    def order(self, epoch: int) -> Order:
        """The order of the dataset itself."""
        return Order(self.num_examples, seed=0, epoch=epoch, shuffle=False)

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        parts = self._parts(epoch, partition, share, first_step, every)
        if self._preparation is not None:
            parts = _prepared(self._preparation, parts)
        for part, data in parts:
            yield tf.range(part.start, part.stop, dtype=tf.int64), data

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        if step > 0:
            self._reader(partition.global_batch_size).seek(epoch, step, goes_on)

    def finish(self, epochs: int) -> None:
        """Makes the remaining iterators: the next training may use the same shuffled dataset."""
        for reader in self._readers.values():
            reader.close()
        cache_files.publish()
        self._iterators.make_passes(epochs)

    def _parts(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int
    ) -> Iterator[Part]:
        """Yields this worker's examples as the dataset gives them."""
        size = partition.global_batch_size
        reader = self._reader(size)
        # Batches that have been prepared ahead are asked for again after a change of membership.
        reader.keep = every * (1 + (AHEAD if self._preparation else 0))
        reader.seek(epoch, first_step)
        for step in range(first_step, partition.steps_per_epoch, every):
            batch = reader.batch(step)
            found = 0 if batch is None else structure.num_examples(batch)
            if found != partition.examples_of_step(step):
                raise self._other_length(epoch, step * size + found)
            if step + 1 == partition.steps_per_epoch:
                self._check_end(reader, epoch, partition)
            part = partition.step_share(step, share.first, share.last)
            yield part, structure.cut(batch, part.start - step * size, part.stop - step * size)

    def _check_end(self, reader: BatchReader, epoch: int, partition: Partition) -> None:
        """Raises `DataError` if the dataset has more examples than in other epochs."""
        used, size = partition.num_examples, partition.global_batch_size
        left_out = self.num_examples - used
        if left_out >= size or used % size:
            return  # only a part of an epoch is used, or the last batch was not full
        left = reader.left_over()
        # With drop_remainder, any number of examples may be left out, but not a whole step.
        if left >= size or (left and not left_out):
            raise self._other_length(epoch, used + left, " or more")

    def _other_length(self, epoch: int, found: int, or_more: str = "") -> DataError:
        return DataError(
            f"The dataset of {self._name} has {found}{or_more} examples in epoch {epoch}, but "
            f"{self.num_examples} in epoch 0. Give every epoch the same length, for example with "
            "repeat().take(n)."
        )

    def _counted(self) -> int:
        count = counted(self._iterators.first(as_numbers), self._name)
        if not count:
            raise DataError(f"The dataset of {self._name} is empty. Give at least one example.")
        return count

    def _reader(self, size: int) -> BatchReader:
        if size not in self._readers:
            batches = _BatchesOfEpochs(
                self._iterators, size, self._name, self._raw_spec, self._is_exclusive
            )
            self._readers[size] = BatchReader(batches, self.log)
        return self._readers[size]


def _prepared(preparation: Preparation, parts: Iterator[Part]) -> Iterator[Part]:
    """Prepares a few steps ahead, in threads, and yields them in order."""
    for (part, _), data in prepared_ahead(parts, lambda part: preparation(part[0].start, part[1])):
        yield part, data


@dataclasses.dataclass
class _BatchesOfEpochs:
    """The examples of datasets in batches of one size; pass n is the dataset of epoch n."""

    iterators: NumberedIterators
    size: int
    name: str
    batch_spec: Structure
    is_exclusive: bool
    batches_per_pass: int | None = None
    advice: str = (
        "A source with random access (hvd_elastic_keras.Source, TFRecordSource) starts anywhere at "
        "once"
    )

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """Opens a pass at its front. A dataset starts nowhere else, so `position` is 0."""
        return self.iterators.of_pass(number, lambda d: d.batch(self.size).prefetch(PREFETCH))


def _check_elements(dataset: tf.data.Dataset, name: str) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise DataError(
            f"{name} gave {type(dataset).__name__} for an epoch, expected a tf.data.Dataset of "
            "single examples. Give arrays and sources as they are, without a function of the "
            "epoch: they are read in another order in every epoch."
        )
    for spec in tf.nest.flatten(dataset.element_spec):
        if spec.shape.rank is None:
            raise DataError(
                f"The dataset of {name} has elements of unknown shape: {dataset.element_spec}. "
                "Say it with tf.ensure_shape in a map, for example "
                "map(lambda x, y: (tf.ensure_shape(x, (28, 28, 1)), y))."
            )


def _cardinality(dataset: tf.data.Dataset, name: str) -> int | None:
    """Returns the number of examples; None if it is only known after reading to the end."""
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            f"The dataset of {name} is infinite, so an epoch has no end. "
            "Use take(n) to say how many examples an epoch has."
        )
    if cardinality == 0:
        raise DataError(f"The dataset of {name} is empty. Give at least one example.")
    return cardinality if cardinality > 0 else None
