"""Where examples come from: arrays, a source with random access, or a `tf.data.Dataset`."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.batch_plan import Share
from hvd_elastic_keras.data.order import Order
from hvd_elastic_keras.data.partition import Partition
from hvd_elastic_keras.data.random_access import Preprocess, RandomAccessExamples, Source
from hvd_elastic_keras.data.reader import PREFETCH, BatchReader
from hvd_elastic_keras.data.structure import Layout, Structure, batched
from hvd_elastic_keras.errors import DataError

LOAD_THREADS = 2
"""Threads that gather batches from arrays: memory has no use for more."""
DatasetFactory = Callable[[int], tf.data.Dataset]
"""Gives the dataset of an epoch: single examples, in the same order whoever asks."""
DataLike = Any
"""Arrays (a `Structure`), a `tf.data.Dataset`, a `DatasetFactory`, a `Source`, or a `Source` and a
`Preprocess`."""


class ExampleSource(Protocol):
    """Examples with a fixed order in each epoch."""

    batch_spec: Structure
    """Specs of a batch of any size; None where batches have nothing."""
    num_examples: int
    from_front: bool
    """Whether a position is reached only by reading what lies before it."""

    def order(self, epoch: int) -> Order:
        """Which example stands at which position of an epoch."""

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        """This worker's part of the steps of an epoch: of `first_step` and each `every`-th after.

        Yields the ids of examples (shape [examples of this worker], int64) and a structure of
        tensors of shape [examples of this worker, …]; which examples is
        `partition.slice_of(step, share.first, share.last)`.
        """

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """Reads what lies before a step, where it has to be read, as long as `goes_on` says so."""


def as_source(data: DataLike, *, seed: int, shuffle: bool, name: str) -> ExampleSource:
    """Wraps what the user gave.

    Raises:
      DataError: it is none of the kinds in `DataLike`, or cannot be read.
    """
    if isinstance(data, tf.data.Dataset):
        return DatasetSource(lambda epoch: data, name)
    found = source_and_preprocess(data)
    if found is not None:
        source, preprocess = found
        return RandomAccessExamples(source, preprocess, seed=seed, shuffle=shuffle, name=name)
    if callable(data):
        return DatasetSource(data, name)
    return ArraySource(data, seed=seed, shuffle=shuffle, name=name)


def source_and_preprocess(data: DataLike) -> tuple[Source, Preprocess | None] | None:
    """What a `Source`, alone or with a function, consists of; None for all other data.

    Raises:
      DataError: it gives batches.
    """
    preprocess = None
    if isinstance(data, tuple | list) and len(data) == 2 and _is_function(data[1]):
        data, preprocess = data
    elif isinstance(data, tuple | list | dict | str) or hasattr(data, "__array__"):
        return None
    if isinstance(data, keras.utils.PyDataset):
        raise DataError(
            f"{type(data).__name__} is a keras.utils.PyDataset, which gives batches; expected a "
            "source of single examples. Give one, or use keras.Model.fit with ElasticCallback."
        )
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return data, preprocess
    if preprocess is not None:
        raise DataError(
            f"({type(data).__name__}, function) was given, expected (source, preprocess) with a "
            "source that has __len__ and __getitem__. For a tf.data.Dataset use its map()."
        )
    return None


def _is_function(value: Any) -> bool:
    return callable(value) and not hasattr(value, "__array__")


class ArraySource:
    """Arrays in memory. Epoch e reads them in the order of a permutation made from (seed, e)."""

    from_front = False

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

    def order(self, epoch: int) -> Order:
        """See `ExampleSource`."""
        return Order(self.num_examples, self._seed, epoch, shuffle=self._shuffle)

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        """See `ExampleSource`."""
        global_size, micro_size = partition.global_batch_size, partition.micro_batch_size

        layout = Layout(self.batch_spec)
        arrays = layout.flatten(self._arrays)
        order = self.order(epoch)

        def load(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
            offset = step * global_size
            limit = tf.minimum(offset + global_size, self.num_examples)
            positions = tf.range(
                tf.minimum(offset + share.first * micro_size, limit),
                tf.minimum(offset + share.last * micro_size, limit),
            )
            indices = order.indices(positions)
            return (indices, *(tf.gather(a, indices) for a in arrays))

        dataset = tf.data.Dataset.range(first_step, partition.steps_per_epoch, every)
        load = tf.autograph.experimental.do_not_convert(load)
        dataset = dataset.map(load, num_parallel_calls=LOAD_THREADS, deterministic=True)
        dataset = dataset.prefetch(PREFETCH)
        options = tf.data.Options()
        # Nothing is left to tune here, and an iterator waits for its tuning thread when it is
        # deleted: up to 2 s were measured, at the end of an epoch or of a round.
        options.autotune.enabled = False
        parts = iter(dataset.with_options(options))
        return ((ids, layout.pack(tensors)) for ids, *tensors in parts)

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """See `ExampleSource`. Any position can be read at once."""


class DatasetSource:
    """Any deterministic `tf.data.Dataset` of single examples, read from the front.

    Every worker reads all global batches and uses its part of each, so that a change of
    membership needs no restart; a newcomer replays the epoch up to the cursor.
    """

    from_front = True

    def __init__(self, factory: DatasetFactory, name: str) -> None:
        self._factory = factory
        dataset = factory(0)
        if not isinstance(dataset, tf.data.Dataset):
            raise DataError(
                f"{name} gave {type(dataset).__name__} for an epoch, expected a tf.data.Dataset of "
                "single examples. Give arrays and sources as they are, without a function of the "
                "epoch: they are read in another order in every epoch."
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
        self._name = name
        self._readers: dict[int, BatchReader] = {}
        """By batch size. There is one, as long as nobody asks for batches of another size."""

    def order(self, epoch: int) -> Order:
        """See `ExampleSource`: the order of the dataset itself."""
        return Order(self.num_examples, seed=0, epoch=epoch, shuffle=False)

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        """See `ExampleSource`."""
        size = partition.global_batch_size
        reader = self._reader(size)
        reader.keep = every
        reader.seek(epoch, first_step)
        for step in range(first_step, partition.steps_per_epoch, every):
            batch = reader.batch(step)
            if batch is None:
                raise DataError(
                    f"The dataset of epoch {epoch} has fewer examples than that of epoch 0, which "
                    f"has {self.num_examples}. Give every epoch the same length, for example with "
                    "repeat().take(n)."
                )
            part = partition.slice_of(step, share.first, share.last)
            start = step * size
            low, high = part.start - start, part.stop - start
            data = tf.nest.map_structure(lambda t, a=low, b=high: t[a:b], batch)
            yield tf.range(part.start, part.stop, dtype=tf.int64), data

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """See `ExampleSource`."""
        self._reader(partition.global_batch_size).seek(epoch, step, goes_on)

    def _reader(self, size: int) -> BatchReader:
        if size not in self._readers:
            batches = _BatchesOfEpochs(self._factory, size, self._name, self.batch_spec)
            self._readers[size] = BatchReader(batches)
        return self._readers[size]


@dataclasses.dataclass
class _BatchesOfEpochs:
    """Examples of datasets in batches of one size; pass n is the dataset of epoch n."""

    factory: DatasetFactory
    size: int
    name: str
    batch_spec: Structure
    batches_per_pass: int | None = None
    advice: str = (
        "A source with random access (hvd_elastic_keras.Source, TFRecordSource) starts anywhere at "
        "once"
    )

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """See `BatchSource`; `position` is 0."""
        return iter(self.factory(number).batch(self.size).prefetch(PREFETCH))


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
