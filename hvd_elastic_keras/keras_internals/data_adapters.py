"""What Keras has made of the data that a user gave to `fit`: its data adapters."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

__all__ = [
    "ArrayDataAdapter",
    "Arrays",
    "GeneratorDataAdapter",
    "PyDatasetAdapter",
    "TFDatasetAdapter",
    "arrays_of",
    "standardize_of",
]


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Data in memory.

    Attributes:
      slices: nested objects that can be sliced along their first dimension, the examples.
      batch_size: examples per batch, as the user asked for.
      shuffles: whether epochs have different orders. `shuffle="batch"` does not count: it changes
        the order within batches only.
    """

    slices: Any
    batch_size: int
    shuffles: bool


def arrays_of(adapter: ArrayDataAdapter) -> Arrays:
    """What an adapter of arrays holds."""
    slices = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    shuffles = bool(adapter._shuffle) and adapter._shuffle != "batch"
    return Arrays(slices, adapter._batch_size, shuffles)


def standardize_of(adapter: PyDatasetAdapter) -> Any:
    """The function that gives the batches of a `keras.utils.PyDataset` their final form."""
    return adapter._standardize_batch
