"""Makes the input of a running `keras.Model.fit` from its Keras data adapter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError, DataError
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.input.fit_epochs import FitInput
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.plan.fit_passes import FitIterators, Passes, Reader
from hvd_elastic_keras.data.sources import iterators
from hvd_elastic_keras.data.sources.dataset_batches import (
    DatasetBatches,
    known_length,
)
from hvd_elastic_keras.data.sources.element_draws import draws_numbers
from hvd_elastic_keras.data.sources.generator_batches import GeneratorBatches, generator_state
from hvd_elastic_keras.data.sources.py_dataset_batches import PyDatasetBatches
from hvd_elastic_keras.data.sources.source import ArraySource
from hvd_elastic_keras.data.sources.split_dataset import SplitDataset, split
from hvd_elastic_keras.keras_internals import dataset_parts
from hvd_elastic_keras.keras_internals.fit_call import (
    ArrayDataAdapter,
    GeneratorDataAdapter,
    PyDatasetAdapter,
    TFDatasetAdapter,
    arrays_of,
    generator_of,
    seeded_order_of,
    standardize_of,
)
from hvd_elastic_keras.keras_internals.global_seed import order_is_free, python_is_seeded
from hvd_elastic_keras.observe.notices import notices


@dataclasses.dataclass(frozen=True)
class OrderSeed:
    """The seed that determines the order of shuffled data.

    Attributes:
      number: determines the order if Keras's own order cannot be determined.
      is_given: whether the user gave `number`: then it always determines the order.
    """

    number: int
    is_given: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitReader:
    """Describes which reader of a `fit` reads some data, and when.

    Attributes:
      name: name of the data, for messages.
      reader: training or evaluation.
      alone: whether no other worker will ever read the data.
      is_row_wise: see `split_dataset.split`.
      passes: the rule that maps epochs to passes over the data.
      index_of: returns the number of an epoch, counted from the first one that reads these data.
      epochs: number of epochs of the `fit`.
      evaluated: the epochs that end with an evaluation, counted from the first one.
      other: the passes of the other reader, if both read the same dataset, or two that share the
        seeds of a `shuffle`, in turns.
      other_data: the adapter of the other reader's data.
    """

    name: str
    reader: Reader
    alone: bool = False
    is_row_wise: Callable[[Any], bool] = lambda function: False
    passes: Passes
    index_of: Callable[[int], int]
    epochs: int
    evaluated: Sequence[int]
    other: Passes | None = None
    other_data: Any = None

    def iterators(self, dataset: tf.data.Dataset) -> FitIterators:
        """Returns the iterators that Keras makes over the dataset."""
        trains = self.reader is Reader.TRAINING
        other = Reader.EVALUATION if trains else Reader.TRAINING
        others = _dataset_of(self.other_data)
        return FitIterators(
            train=self.passes if trains else self.other,
            evaluate=self.other if trains else self.passes,
            batches={
                self.reader: known_length(dataset),
                other: None if others is None else known_length(others),
            },
            epochs=self.epochs,
            evaluated=self.evaluated,
        )


def input_of(
    adapter: Any,
    reader: FitReader,
    micro_batch_size: Callable[[int], int],
    seed: OrderSeed,
    beside: FitInput | None = None,
) -> FitInput:
    """Makes an adapter's data restartable at any batch, in the same order on all workers.

    Args:
      adapter: Keras's adapter; it already holds `class_weight` and `sample_weight`.
      reader: describes the reader of the data.
      micro_batch_size: a function that takes the examples of a batch and returns the examples per
        forward and backward pass.
      seed: determines the order of shuffled data.
      beside: the input of the training, if both take seeds in turns: see `FitReader.other`.

    Raises:
      DataError: the data cannot be cut, cannot be read twice in the same order, or would be read
        in another order by another worker.
    """
    inner = _inner(adapter, reader, micro_batch_size, seed, beside)
    return FitInput(inner, reader.passes, reader.index_of)


def per_worker_input_of(
    adapter: Any, reader: FitReader, micro_batch_size: Callable[[int], int], seed: OrderSeed
) -> PerWorkerInput:
    """Does the same as `input_of` for training data if every worker takes whole batches.

    A step of the reader's passes is then the batch of one worker.

    Raises:
      DataError: as for `input_of`.
    """
    inner = _inner(adapter, reader, micro_batch_size, seed)
    return PerWorkerInput(inner, reader.index_of, reader.passes)


def check_no_steps_per_epoch(steps_per_epoch: int | None) -> None:
    """Raises `ConfigurationError` if `steps_per_epoch` is given where its meaning is unclear."""
    if steps_per_epoch is not None:
        raise ConfigurationError(
            f"steps_per_epoch={steps_per_epoch} was given to fit together with "
            "batch='per_worker', where an epoch takes fewer steps the more workers there are. "
            "Leave it out, so that an epoch is a pass over the data (use take(n) for an endless "
            "dataset), or use batch='global'."
        )


def _inner(
    adapter: Any,
    reader: FitReader,
    micro_batch_size: Callable[[int], int],
    seed: OrderSeed,
    beside: FitInput | None = None,
) -> Pipeline | BatchPipeline:
    if isinstance(adapter, ArrayDataAdapter):
        return _of_arrays(adapter, micro_batch_size, seed, reader.name)
    if isinstance(adapter, PyDatasetAdapter):
        return BatchPipeline(_py_dataset(adapter, reader, seed), micro_batch_size)
    if isinstance(adapter, GeneratorDataAdapter):
        return BatchPipeline(_generator(adapter, reader, seed), micro_batch_size)
    if isinstance(adapter, TFDatasetAdapter):
        return BatchPipeline(_dataset(adapter, reader, seed, beside), micro_batch_size)
    raise DataError(
        f"{reader.name} came as {type(adapter).__name__.removesuffix('Adapter')}, expected arrays, "
        "a tf.data.Dataset, a keras.utils.PyDataset or a generator. Convert it, for example with "
        "tf.data.Dataset.from_generator."
    )


def _py_dataset(adapter: Any, reader: FitReader, seed: OrderSeed) -> PyDatasetBatches:
    own_order = seed.is_given or not python_is_seeded()
    return PyDatasetBatches(
        adapter.py_dataset,
        standardize_of(adapter),
        adapter.shuffle,
        seed.number if own_order else None,
        call_seed=None if reader.alone else seed.number,
    )


def _generator(adapter: Any, reader: FitReader, seed: OrderSeed) -> GeneratorBatches:
    given = generator_of(adapter)
    own = None if reader.alone else generator_state(reader.name, reader.reader, seed.number)
    return GeneratorBatches(
        given.first, given.rest, given.spec, reader.name, reader.passes, draws=own
    )


def _dataset(
    adapter: Any, reader: FitReader, seed: OrderSeed, beside: FitInput | None
) -> DatasetBatches:
    """Returns the batches of a dataset. A dataset that is also trained on is split only once."""
    dataset = adapter.get_tf_dataset()
    training = None if beside is None else beside.inner
    trained = training.source if isinstance(training, BatchPipeline) else None
    first = None
    if training and isinstance(trained, DatasetBatches) and trained.dataset is dataset:
        parts, first = trained.parts, training.first_batch()
    else:
        parts = None if reader.alone else _split(dataset, reader, seed)
        _tell_of_unknown_length(dataset, reader)
        if training and isinstance(trained, DatasetBatches) and _looks_like(trained, dataset):
            first = training.first_batch()
    return DatasetBatches(
        dataset,
        reader.name,
        made=reader.iterators(dataset),
        reader=reader.reader,
        beside=trained,
        first=first,
        parts=parts,
        seed=None if reader.alone else seed.number,
    )


def _looks_like(trained: DatasetBatches, dataset: tf.data.Dataset) -> bool:
    """Whether the first batch of the training stands for that of a dataset read beside it.

    A `cache` gives the dataset the order that the training has read, so nothing can be read of it
    before.
    """
    same = dataset.element_spec == trained.dataset.element_spec
    return same and iterators.share_kept_order(dataset, trained.dataset)


def _split(dataset: tf.data.Dataset, reader: FitReader, seed: OrderSeed) -> SplitDataset:
    """Takes the `map`s out of a dataset, and checks that its order is the same on all workers."""
    parts = split(dataset, seed.number, reader.is_row_wise)
    changed = (*parts.taken, *parts.drawn)
    iterators.check_order(dataset, reader.name, changed, is_in_order=parts.raw is not None)
    _tell_of_maps(reader.name, parts)
    return parts


def _tell_of_maps(name: str, parts: SplitDataset) -> None:
    if any(map(draws_numbers, (*parts.taken, *parts.drawn))) and not order_is_free():
        notices.tell_once(
            f"{name}: random numbers in map(...) follow from the number of each example. They are "
            "the same for any number of workers, but not those of plain fit."
        )
    if parts.left:
        notices.tell_once(
            f"{name}: every worker prepares all examples of each batch, as {parts.left}. See "
            "docs/input.md for pipelines of which each worker runs its part."
        )


def _tell_of_unknown_length(dataset: tf.data.Dataset, reader: FitReader) -> None:
    """Says what plain `fit` counts beyond the end of data whose number of batches is unknown."""
    is_unknown = int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    if not is_unknown or reader.passes.steps_per_epoch is not None:
        return
    seen_by = []
    if reader.reader is Reader.TRAINING and reader.epochs > 1:
        seen_by += ["the bias correction of Adam", "learning rate schedules"]
        seen_by += ["the random numbers of layers such as Dropout"]
    shape = getattr(tf.nest.flatten(dataset.element_spec)[0], "shape", tf.TensorShape(None))
    if shape.rank and shape[0] is not None:
        # With `drop_remainder=True` a graph has the size of a batch as a constant.
        seen_by += ["the means of losses and metrics"]
    if seen_by:
        notices.tell(
            f"{reader.name}: TensorFlow does not know how many batches this dataset has. At the "
            "end of each epoch, plain fit counts a step that it does not take, also in "
            f"{', '.join(seen_by)}. This job counts steps that are taken. "
            "dataset.apply(tf.data.experimental.assert_cardinality(n)) makes both the same."
        )


def _of_arrays(
    adapter: Any, micro_batch_size: Callable[[int], int], seed: OrderSeed, name: str
) -> Pipeline:
    arrays = arrays_of(adapter)
    for leaf in tf.nest.flatten(arrays.slices):
        if isinstance(leaf, tf.SparseTensor) or "Sparse" in type(leaf).__name__:
            raise DataError(
                f"{name} came as a sparse tensor of all examples, expected arrays or batches. Give "
                "tf.data.Dataset.from_tensor_slices((x, y)).batch(n), whose batches may be sparse; "
                "of a SciPy matrix, x.toarray()."
            )
    source = ArraySource(
        arrays.slices,
        seed=seed.number,
        shuffle=arrays.shuffles,
        name=name,
        listed=None if seed.is_given else seeded_order_of(adapter),
    )
    size = min(arrays.batch_size, source.num_examples)
    return Pipeline(source, size, micro_batch_size(size))


def check_repeatable(adapter: Any) -> None:
    """Raises `DataError` for data that a second call of `fit` could not read from the beginning."""
    if isinstance(adapter, GeneratorDataAdapter):
        raise DataError(
            "x came as a generator to fit in a function of elastic.run, which begins anew in every "
            "round, while a generator goes on. Give arrays, a keras.utils.PyDataset or a "
            "tf.data.Dataset (from_generator makes one of a function)."
        )


def take_turns(train: Any, validation: Any) -> bool:
    """Returns whether two adapters hold different datasets that share the seeds of a `shuffle`."""
    datasets = _dataset_of(train), _dataset_of(validation)
    if datasets[0] is None or datasets[1] is None or datasets[0] is datasets[1]:
        return False
    return iterators.share_shuffle(*datasets)


def leave_examples_out(train: Any, validation: Any) -> bool:
    """Returns whether examples move from one of the datasets of `take_turns` to the other.

    They do if one of the two is only a part of the examples, in an order that changes.
    """
    datasets = _dataset_of(train), _dataset_of(validation)
    if not iterators.share_changing_order(*datasets):
        return False
    parts = (part for dataset in datasets for part in dataset_parts.parts_of(dataset))
    return any(map(dataset_parts.leaves_out_by_place, parts))


def check_turns(train: Any, validation: Any) -> None:
    """Raises `DataError` if it is not known when the two of `take_turns` take a seed."""
    datasets = _dataset_of(train), _dataset_of(validation)
    if any(iterators.repeats_shuffle(dataset) for dataset in datasets if dataset is not None):
        iterators.check_apart(*datasets)


def share_cache(train: Any, validation: Any) -> bool:
    """Returns whether a `cache` keeps the order of a shuffle for the two of `take_turns`."""
    return iterators.share_kept_order(_dataset_of(train), _dataset_of(validation))


def are_one(train: Any, validation: Any) -> bool:
    """Returns whether two adapters hold the same dataset, with all seeds taken at the start."""
    dataset = _dataset_of(train)
    if dataset is None or dataset is not _dataset_of(validation):
        return False
    return not iterators.repeats_shuffle(dataset)


def _dataset_of(adapter: Any) -> tf.data.Dataset | None:
    return adapter.get_tf_dataset() if isinstance(adapter, TFDatasetAdapter) else None
