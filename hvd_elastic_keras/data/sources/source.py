"""Makes a source from the user's data: arrays, a random-access source, or a `tf.data.Dataset`.

`ExampleSource` is the interface of a source: single examples in a fixed order in each epoch.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.preparation import Preprocess, plain_options
from hvd_elastic_keras.data.examples.structure import Layout, Structure, batched
from hvd_elastic_keras.data.plan.order import ExampleOrder, ListedOrder, Order
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.dataset_source import DatasetSource
from hvd_elastic_keras.data.sources.random_access import RandomAccessExamples
from hvd_elastic_keras.data.sources.reader import PREFETCH

LOAD_THREADS = 2
"""Threads that gather batches from arrays. More would not be faster: the arrays are in memory."""
DataLike = Any
"""Data that users may give.

These are arrays (a `Structure`); or a `tf.data.Dataset` of single examples, a function that takes
the epoch and returns such a dataset, or a `Source`. Each of these three may come with a
`Preprocess`.
"""


class ExampleSource(Protocol):
    """Examples in a fixed order in each epoch."""

    batch_spec: Structure
    """Specs of a batch of any size; None where batches have no tensor."""
    num_examples: int
    from_front: bool
    """Whether a position can be reached only by reading everything before it."""

    @property
    def log(self) -> BatchLog | None:
        """Notes the batches that are read; None if each worker reads its own part only."""

    def order(self, epoch: int) -> ExampleOrder:
        """Returns the order of an epoch: which example stands at which position."""

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        """Yields this worker's part of `first_step` and of each `every`-th step after it.

        A part is the ids of examples (shape [examples of this worker], int64) and a structure of
        tensors of shape [examples of this worker, …]. `partition.step_share(step, share.first,
        share.last)` says which examples these are. The last step is the last one of the epoch.
        """

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """Reads everything before a step, if this is necessary, while `goes_on` returns True."""

    def finish(self, epochs: int) -> None:
        """Leaves the data as after a training of `epochs` epochs."""


def as_source(
    data: DataLike,
    *,
    seed: int,
    shuffle: bool,
    name: str,
    num_examples: int | None = None,
    must_repeat: bool = False,
) -> ExampleSource:
    """Returns a source that reads the user's data.

    Args:
      num_examples: number of examples, if it has been counted for a dataset that does not tell it.
      must_repeat: whether to refuse a dataset that has another order in another process.

    Raises:
      DataError: the data are none of the kinds in `DataLike`, or cannot be read.
    """
    data, preprocess = split_preprocess(data)
    if isinstance(data, tf.data.Dataset) or (callable(data) and not is_source(data)):
        return DatasetSource(
            (lambda epoch: data) if isinstance(data, tf.data.Dataset) else data,
            name,
            preprocess,
            num_examples=num_examples,
            must_repeat=must_repeat,
        )
    if is_source(data):
        return RandomAccessExamples(data, preprocess, seed=seed, shuffle=shuffle, name=name)
    if preprocess is not None:
        raise DataError(
            f"({type(data).__name__}, function) was given, expected (source, preprocess) with a "
            "source that has __len__ and __getitem__, or with a tf.data.Dataset of single examples."
        )
    return ArraySource(data, seed=seed, shuffle=shuffle, name=name)


def split_preprocess(data: DataLike) -> tuple[DataLike, Preprocess | None]:
    """Splits data into the part that is read and the `preprocess` function, if there is one."""
    if isinstance(data, tuple | list) and len(data) == 2 and _is_function(data[1]):
        return data[0], data[1]
    return data, None


def is_source(data: Any) -> bool:
    """Returns whether these data are single examples with random access.

    Raises:
      DataError: the data are batches.
    """
    if isinstance(data, tuple | list | dict | str) or hasattr(data, "__array__"):
        return False
    if isinstance(data, keras.utils.PyDataset):
        raise DataError(
            f"{type(data).__name__} is a keras.utils.PyDataset, which gives batches; expected a "
            "source of single examples. Give one, or use keras.Model.fit with ElasticCallback."
        )
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _is_function(value: Any) -> bool:
    return callable(value) and not hasattr(value, "__array__")


@dataclasses.dataclass
class _Reading:
    """Batches that are being loaded, with the cut and the number of the next batch."""

    batches: Iterator[tuple[tf.Tensor, ...]]
    follows: tuple[tuple[Partition, Share, int], int]


class ArraySource:
    """Arrays in memory. Epoch e reads them in the order of a permutation made from (seed, e).

    Args:
      listed: shape [examples], int64: the order of every epoch; None for the permutations above.
    """

    from_front = False
    log: BatchLog | None = None

    def __init__(
        self,
        arrays: Structure,
        *,
        seed: int,
        shuffle: bool,
        name: str,
        listed: npt.NDArray[np.int64] | None = None,
    ) -> None:
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
        self._layout = Layout(self.batch_spec)
        self._reading: _Reading | None = None
        self._seed = seed
        self._shuffle = shuffle
        self._listed = None if listed is None else ListedOrder(_to_tensor(listed))

    def order(self, epoch: int | tf.Tensor) -> ExampleOrder:
        if self._listed is not None:
            return self._listed
        return Order(self.num_examples, self._seed, epoch, shuffle=self._shuffle)

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        cut = (partition, share, every)
        for step in range(first_step, partition.steps_per_epoch, every):
            number = epoch * partition.steps_per_epoch + step
            # An epoch goes on in the iterator of the previous epoch; only the first one needs a new
            # one.
            if self._reading is None or self._reading.follows != (cut, number):
                self._reading = _Reading(self._loaded(number, *cut), (cut, number))
            ids, *tensors = next(self._reading.batches)
            self._reading.follows = (cut, number + every)
            yield ids, self._layout.pack(tensors)

    def _loaded(
        self, first: int, partition: Partition, share: Share, every: int
    ) -> Iterator[tuple[tf.Tensor, ...]]:
        """Returns the leaves of the batches of all epochs, from step number `first` on.

        Step numbers continue from epoch to epoch.
        """
        global_size, micro_size = partition.global_batch_size, partition.micro_batch_size
        arrays = self._layout.flatten(self._arrays)

        def load(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
            epoch = number // partition.steps_per_epoch
            offset = number % partition.steps_per_epoch * global_size
            limit = tf.minimum(offset + global_size, self.num_examples)
            positions = tf.range(
                tf.minimum(offset + share.first * micro_size, limit),
                tf.minimum(offset + share.last * micro_size, limit),
            )
            indices = self.order(epoch).indices(positions)
            return (indices, *(tf.gather(a, indices) for a in arrays))

        dataset = tf.data.Dataset.range(first, tf.int64.max, every)
        load = tf.autograph.experimental.do_not_convert(load)
        dataset = dataset.map(load, num_parallel_calls=LOAD_THREADS, deterministic=True)
        return iter(dataset.prefetch(PREFETCH).with_options(plain_options()))

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """Does nothing: any position can be read at once."""

    def finish(self, epochs: int) -> None:
        """Does nothing: a training leaves no trace in this source."""


def _to_tensor(array: Any) -> tf.Tensor | None:
    if array is None or isinstance(array, tf.RaggedTensor):
        return array
    with tf.device("CPU:0"):
        if isinstance(array, np.ndarray) and array.dtype == np.float64:
            # Keras casts numbers to this type anyway, so float64 would only take twice the memory.
            array = array.astype(keras.config.floatx())
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
