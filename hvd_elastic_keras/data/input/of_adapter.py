"""The input of a running `keras.Model.fit`, from the data adapter that Keras has made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError, DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.input.fit_epochs import FitInput
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.plan.fit_passes import Passes
from hvd_elastic_keras.data.sources import iterators
from hvd_elastic_keras.data.sources.reader import DatasetBatches, PyDatasetBatches
from hvd_elastic_keras.data.sources.source import ArraySource
from hvd_elastic_keras.keras_internals.data_adapters import (
    ArrayDataAdapter,
    GeneratorDataAdapter,
    PyDatasetAdapter,
    TFDatasetAdapter,
    arrays_of,
    seeded_order_of,
    standardize_of,
)


@dataclasses.dataclass(frozen=True)
class OrderSeed:
    """What shuffled data take their order from.

    Attributes:
      number: orders follow from it where Keras's own cannot be said.
      is_given: orders follow from it in any case.
    """

    number: int
    is_given: bool


def input_of(
    adapter: Any,
    *,
    passes: Passes,
    index_of: Callable[[int], int],
    micro_batch_size: Callable[[int], int],
    seed: int,
    seed_is_given: bool = False,
    name: str,
) -> FitInput:
    """Makes an adapter's data restartable at any batch, in the same order on all workers.

    Args:
      adapter: Keras's; it already holds `class_weight` and `sample_weight`.
      passes: how epochs lie on passes over the data.
      index_of: number of an epoch, counted from the first one that reads this input.
      micro_batch_size: examples per forward and backward pass, from those of a batch.
      seed: orders follow from it where Keras's own cannot be said.
      seed_is_given: orders follow from it in any case.
      name: of the data, for messages.

    Raises:
      DataError: the data cannot be cut, or cannot be read twice in the same order.
    """
    order_seed = OrderSeed(seed, seed_is_given)
    return FitInput(_inner(adapter, passes, micro_batch_size, order_seed, name), passes, index_of)


def per_worker_input_of(
    adapter: Any,
    *,
    passes: Passes,
    index_of: Callable[[int], int],
    micro_batch_size: Callable[[int], int],
    seed: int,
    seed_is_given: bool = False,
    name: str,
) -> PerWorkerInput:
    """As `input_of`, for training data of which every worker takes whole batches.

    The steps of `passes` are batches of one worker.

    Raises:
      DataError: as `input_of`.
    """
    inner = _inner(adapter, passes, micro_batch_size, OrderSeed(seed, seed_is_given), name)
    return PerWorkerInput(inner, index_of, passes)


def check_no_steps_per_epoch(steps_per_epoch: int | None) -> None:
    """Raises `ConfigurationError` where it is not clear whose steps they would be."""
    if steps_per_epoch is not None:
        raise ConfigurationError(
            f"steps_per_epoch={steps_per_epoch} was given to fit together with "
            "batch='per_worker', where an epoch takes fewer steps the more workers there are. "
            "Leave it out, so that an epoch is a pass over the data (use take(n) for an endless "
            "dataset), or use batch='global'."
        )


def _inner(
    adapter: Any,
    passes: Passes,
    micro_batch_size: Callable[[int], int],
    seed: OrderSeed,
    name: str,
) -> Pipeline | BatchPipeline:
    if isinstance(adapter, ArrayDataAdapter):
        return _of_arrays(adapter, micro_batch_size, seed, name)
    if isinstance(adapter, PyDatasetAdapter):
        batches = PyDatasetBatches(
            adapter.py_dataset,
            standardize_of(adapter),
            adapter.shuffle,
            seed.number,
            resets=not passes.goes_on,
        )
        return BatchPipeline(batches, micro_batch_size)
    if isinstance(adapter, TFDatasetAdapter | GeneratorDataAdapter):
        one_pass = passes.steps_per_epoch is None
        source = DatasetBatches(adapter.get_tf_dataset(), name, repeats_known_length=one_pass)
        return BatchPipeline(source, micro_batch_size)
    raise DataError(
        f"{name} came as {type(adapter).__name__.removesuffix('Adapter')}, expected arrays, a "
        "tf.data.Dataset, a keras.utils.PyDataset or a generator. Convert it, for example with "
        "tf.data.Dataset.from_generator."
    )


def _of_arrays(
    adapter: Any, micro_batch_size: Callable[[int], int], seed: OrderSeed, name: str
) -> Pipeline:
    arrays = arrays_of(adapter)
    for leaf in tf.nest.flatten(arrays.slices):
        if isinstance(leaf, tf.SparseTensor) or "Sparse" in type(leaf).__name__:
            structure.check_sliceable(tf.SparseTensorSpec(None), name)
    source = ArraySource(
        arrays.slices,
        seed=seed.number,
        shuffle=arrays.shuffles,
        name=name,
        listed=None if seed.is_given else seeded_order_of(adapter),
    )
    size = min(arrays.batch_size, source.num_examples)
    return Pipeline(source, size, micro_batch_size(size))


def check_order(adapter: Any, name: str) -> None:
    """Raises `DataError` if another worker would read an adapter's dataset in another order."""
    dataset = _dataset_of(adapter)
    if dataset is not None:
        iterators.check_order(dataset, name)


def check_repeatable(adapter: Any) -> None:
    """Raises `DataError` for data that a `fit` which is called again would not have whole."""
    if isinstance(adapter, GeneratorDataAdapter):
        raise DataError(
            "x came as a generator to fit in a function of elastic.run, which begins anew in every "
            "round, while a generator goes on. Give arrays, a keras.utils.PyDataset or a "
            "tf.data.Dataset (from_generator makes one of a function)."
        )


def check_apart(train: Any, validation: Any) -> None:
    """Raises `DataError` if the datasets of two adapters take the seeds of one shuffle in turn."""
    iterators.check_apart(_dataset_of(train), _dataset_of(validation))


def _dataset_of(adapter: Any) -> tf.data.Dataset | None:
    return adapter.get_tf_dataset() if isinstance(adapter, TFDatasetAdapter) else None
