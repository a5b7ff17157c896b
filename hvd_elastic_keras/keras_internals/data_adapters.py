"""Reads Keras's data adapters, which hold the data that a user gave to `fit`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from hvd_elastic_keras.keras_internals.tensorflow_names import global_seed

__all__ = [
    "ArrayDataAdapter",
    "Arrays",
    "GeneratorDataAdapter",
    "PyDatasetAdapter",
    "TFDatasetAdapter",
    "GeneratorParts",
    "arrays_of",
    "generator_of",
    "seeded_order_of",
    "standardize_of",
]


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Data in memory.

    Attributes:
      slices: nested objects that can be sliced along their first dimension: the examples.
      batch_size: examples per batch, as the user asked for.
      shuffles: whether epochs have different orders. `shuffle="batch"` does not count: it changes
        the order within batches only.
    """

    slices: Any
    batch_size: int
    shuffles: bool


def arrays_of(adapter: ArrayDataAdapter) -> Arrays:
    """Returns the data that an adapter of arrays holds."""
    slices = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    shuffles = bool(adapter._shuffle) and adapter._shuffle != "batch"
    return Arrays(slices, adapter._batch_size, shuffles)


def seeded_order_of(adapter: ArrayDataAdapter) -> npt.NDArray[np.int64] | None:
    """Returns the order in which Keras reads shuffled arrays in each epoch; None if unknown.

    Keras draws the order by `tf.random.shuffle` in a dataset. Each iterator of the dataset begins
    anew at the global seed, so all epochs have the same order. This function draws the order with
    an adapter of Keras, too, which shuffles the numbers of the examples.
    """
    if not adapter._shuffle or global_seed() is None:
        return None
    count = adapter._num_samples
    # The order depends on the size of batches only with "batch".
    size = adapter._batch_size if adapter._shuffle == "batch" else count
    numbers = ArrayDataAdapter(np.arange(count), batch_size=size, shuffle=adapter._shuffle)
    batches = numbers.get_tf_dataset().rebatch(count)
    (order,) = batches.as_numpy_iterator()
    return np.asarray(order, np.int64)


@dataclasses.dataclass(frozen=True)
class GeneratorParts:
    """A user's generator from which Keras has already taken some batches.

    Attributes:
      first: the batches that Keras has taken.
      rest: the batches after them.
      spec: the spec of a batch; None where batches have nothing.
    """

    first: Sequence[Any]
    rest: Iterator[Any]
    spec: Any


def generator_of(adapter: GeneratorDataAdapter) -> GeneratorParts:
    """Returns the parts of the generator that an adapter holds."""
    spec = tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.OptionalSpec) else leaf,
        adapter.get_tf_dataset().element_spec,
    )
    first = adapter._first_batches
    # The generator of the adapter begins with these batches.
    return GeneratorParts(first, itertools.islice(adapter.generator(), len(first), None), spec)


def standardize_of(adapter: PyDatasetAdapter) -> Any:
    """Returns the function that gives batches of a `keras.utils.PyDataset` their final form."""
    return adapter._standardize_batch
