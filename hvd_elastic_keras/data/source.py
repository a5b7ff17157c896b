"""Where examples come from: arrays, or a deterministic `tf.data.Dataset`."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.batch_plan import Share
from hvd_elastic_keras.data.partition import Partition
from hvd_elastic_keras.data.reader import PREFETCH, drop_in_background
from hvd_elastic_keras.data.structure import Layout, Structure, batched
from hvd_elastic_keras.errors import DataError

DatasetFactory = Callable[[int], tf.data.Dataset]
"""Gives the dataset of an epoch: single examples, in the same order whoever asks."""
DataLike = Any
"""Arrays (a `Structure`), a `tf.data.Dataset`, or a `DatasetFactory`."""


class Source(Protocol):
    """Examples with a fixed order in each epoch."""

    batch_spec: Structure
    """Specs of a batch of any size; None where batches have nothing."""
    num_examples: int

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[Structure]:
        """This worker's part of the steps of an epoch: of `first_step` and each `every`-th after.

        Yields structures of tensors of shape [examples of this worker, …]; which examples is
        `partition.slice_of(step, share.first, share.last)`.
        """


def as_source(data: DataLike, *, seed: int, shuffle: bool, name: str) -> Source:
    """Wraps what the user gave.

    Raises:
      DataError: it is neither arrays of equal length nor a dataset of single examples.
    """
    if isinstance(data, tf.data.Dataset):
        return DatasetSource(lambda epoch: data, name)
    if callable(data):
        return DatasetSource(data, name)
    return ArraySource(data, seed=seed, shuffle=shuffle, name=name)


class ArraySource:
    """Arrays in memory. Epoch e reads them in the order of a permutation made from (seed, e).

    The permutation is `tf.random.experimental.index_shuffle`: it needs no memory and can be
    evaluated anywhere, so that a restart at any step costs nothing.
    """

    def __init__(self, arrays: Structure, *, seed: int, shuffle: bool, name: str) -> None:
        if isinstance(arrays, list):
            arrays = tuple(arrays)
        self._arrays = tf.nest.map_structure(_to_tensor, arrays)
        lengths = collections.Counter(
            _length(a, name) for a in tf.nest.flatten(self._arrays) if a is not None
        )
        if len(lengths) != 1:
            raise DataError(
                f"The arrays of {name} have different lengths: {sorted(lengths)}. "
                "Give arrays with the same first dimension, for example (x, y)."
            )
        (self.num_examples,) = lengths
        if self.num_examples == 0:
            raise DataError(f"The arrays of {name} are empty. Give at least one example.")
        self.batch_spec = tf.nest.map_structure(batched, self._arrays)
        self._seed = seed
        self._shuffle = shuffle

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[Structure]:
        """See `Source.batches`."""
        global_size, micro_size = partition.global_batch_size, partition.micro_batch_size

        layout = Layout(self.batch_spec)
        arrays = layout.flatten(self._arrays)

        def load(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
            offset = step * global_size
            limit = tf.minimum(offset + global_size, self.num_examples)
            positions = tf.range(
                tf.minimum(offset + share.first * micro_size, limit),
                tf.minimum(offset + share.last * micro_size, limit),
            )
            order = self._order(positions, epoch)
            return tuple(tf.gather(a, order) for a in arrays)

        dataset = tf.data.Dataset.range(first_step, partition.steps_per_epoch, every)
        dataset = dataset.map(load, num_parallel_calls=1, deterministic=True).prefetch(PREFETCH)
        options = tf.data.Options()
        # Nothing is left to tune here, and an iterator waits for its tuning thread when it is
        # deleted: up to 2 s were measured, at the end of an epoch or of a round.
        options.autotune.enabled = False
        return (layout.pack(list(tensors)) for tensors in dataset.with_options(options))

    def _order(self, positions: tf.Tensor, epoch: int) -> tf.Tensor:
        if not self._shuffle:
            return positions
        # One more, dropped again: the operation refuses an empty list, which is what a worker
        # without a part in the last step of an epoch has.
        shuffled = tf.random.experimental.index_shuffle(
            tf.pad(positions, [[0, 1]]), seed=[self._seed, epoch], max_index=self.num_examples - 1
        )
        return shuffled[:-1]


class DatasetSource:
    """Any deterministic `tf.data.Dataset` of single examples, read from the front.

    Every worker reads all global batches and uses its part of each, so that a change of
    membership needs no restart; a late joiner replays the epoch up to the cursor.
    """

    def __init__(self, factory: DatasetFactory, name: str) -> None:
        self._factory = factory
        dataset = factory(0)
        if not isinstance(dataset, tf.data.Dataset):
            raise DataError(
                f"{name} gave {type(dataset).__name__}, expected arrays such as (x, y), "
                "or a tf.data.Dataset of single examples."
            )
        element_spec = dataset.element_spec
        self.batch_spec = tf.nest.map_structure(
            lambda s: tf.TensorSpec([None, *s.shape], s.dtype) if s.shape.rank is not None else s,
            element_spec,
        )
        for spec in tf.nest.flatten(element_spec):
            if spec.shape.rank is None:
                raise DataError(
                    f"The dataset of {name} has elements of unknown shape: {element_spec}. "
                    "Say it with tf.ensure_shape in a map, for example "
                    "map(lambda x, y: (tf.ensure_shape(x, (28, 28, 1)), y))."
                )
        self.num_examples = _count(dataset, name)
        self._reader: _Reader | None = None

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[Structure]:
        """See `Source.batches`."""
        size = partition.global_batch_size
        reader = self._reader
        if reader is None or not reader.can_serve(epoch, size, first_step):
            if reader is not None:
                drop_in_background(reader.iterator)
            reader = self._reader = _Reader(self._factory(epoch), epoch, size, first_step)
        reader.keep = every
        for step in range(first_step, partition.steps_per_epoch, every):
            part = partition.slice_of(step, share.first, share.last)
            start = step * size
            low, high = part.start - start, part.stop - start
            yield tf.nest.map_structure(lambda t, a=low, b=high: t[a:b], reader.batch(step))


class _Reader:
    """Reads the global batches of an epoch in order and remembers the last `keep` of them."""

    def __init__(self, dataset: tf.data.Dataset, epoch: int, size: int, first_step: int) -> None:
        self._key = (epoch, size)
        skipped = dataset.skip(first_step * size) if first_step else dataset
        self.iterator = [iter(skipped.batch(size).prefetch(PREFETCH))]
        self._next = first_step
        self._last: collections.deque[Structure] = collections.deque()
        self.keep = 1

    def can_serve(self, epoch: int, size: int, step: int) -> bool:
        return self._key == (epoch, size) and step >= self._next - len(self._last)

    def batch(self, step: int) -> Structure:
        while self._next <= step:
            batch = next(self.iterator[0], None)
            if batch is None:
                epoch, size = self._key
                raise DataError(
                    f"The dataset of epoch {epoch} ended after {self._next * size} examples "
                    "or less, but that of epoch 0 has more. Give every epoch the same length, for "
                    "example with repeat().take(n)."
                )
            self._last.append(batch)
            self._next += 1
            while len(self._last) > self.keep:
                self._last.popleft()
        return self._last[step - self._next]


def _to_tensor(array: Any) -> tf.Tensor | None:
    if array is None or isinstance(array, tf.RaggedTensor):
        return array
    with tf.device("CPU:0"):
        if isinstance(array, np.ndarray) and array.dtype == np.float64:
            # Keras computes in float32; twice the memory would buy nothing.
            array = array.astype(np.float32)
        try:
            return tf.convert_to_tensor(array)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{type(array).__name__} was given, expected an array or a tf.data.Dataset: {error}"
            ) from error


def _length(array: tf.Tensor, name: str) -> int:
    if array.shape.rank == 0:
        raise DataError(
            f"{name} contains a single number, expected arrays whose first dimension counts the "
            "examples, for example (x, y)."
        )
    return int(array.shape[0])


def _count(dataset: tf.data.Dataset, name: str) -> int:
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            f"The dataset of {name} is infinite, so an epoch has no end. "
            "Use take(n) to say how many examples an epoch has."
        )
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        cardinality = int(dataset.reduce(np.int64(0), lambda n, *_: n + 1))
    if cardinality == 0:
        raise DataError(f"The dataset of {name} is empty. Give at least one example.")
    return cardinality
