"""Reads a running `keras.Model.fit`: the user's arguments, as Keras has prepared them.

`fit` keeps them in local variables, so this module reads its frame. The names are private to Keras.
They are checked here. `keras_internals/release.py` checks the range of tested releases.

`arrays_of` and others read Keras's data adapters, which hold the data that the user gave to `fit`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import types
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.global_seed import order_is_free

FIT_CODE = inspect.unwrap(TensorFlowTrainer.fit).__code__
BATCH_END_GETS_LAST_STEP = "end_step" in FIT_CODE.co_varnames
"""Whether the batch-end hook gets the number of the last step, with `steps_per_execution`. In older
releases (3.8), it gets the number of the first one."""
NAMES = (
    "self",
    "epoch_iterator",
    "callbacks",
    "initial_epoch",
    "epochs",
    "verbose",
    "batch_size",
    "x",
    "y",
    "validation_data",
    "validation_batch_size",
    "validation_steps",
    "validation_freq",
)
"""Local variables of `fit` that must be there."""
TERMS = ("epochs", "initial_epoch", "steps_per_epoch", "validation_steps", "validation_freq")
"""Arguments of `fit` that say how long it trains."""
VALIDATION_NAMES = ("val_x", "val_y", "val_sample_weight")

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitCall:
    """A call of `fit`.

    Attributes:
      callbacks: all callbacks, including the `History` and the progress bar of Keras.
      adapter: Keras's view of the training data: batches, with weights.
      steps_per_epoch: None if an epoch is a pass over the data.
      validation: like `adapter`; None if there is no validation.
      data: the objects that hold the examples, as Keras received them.
    """

    model: keras.Model
    callbacks: list[keras.callbacks.Callback]
    epochs: int
    initial_epoch: int
    verbose: int
    adapter: Any
    steps_per_epoch: int | None
    validation: Any
    validation_steps: int | None
    validation_freq: int | list[int]
    data: tuple[Any, ...] = ()

    @property
    def data_may_draw(self) -> bool:
        """Whether Python code of the data may draw from `random` and `np.random`."""
        draw = PyDatasetAdapter | GeneratorDataAdapter
        return isinstance(self.adapter, draw) or isinstance(self.validation, draw)

    @property
    def terms(self) -> dict[str, Any]:
        """The length of the training, as values for JSON. `dataclasses.replace` takes them back."""
        return {name: getattr(self, name) for name in TERMS}


def running_fit(frame: types.FrameType | None) -> FitCall:
    """Returns the call of `fit` whose frame is `frame` or encloses it.

    Raises:
      ConfigurationError: there is no such call, or this release of Keras uses other names.
    """
    while frame is not None and frame.f_code is not FIT_CODE:
        frame = frame.f_back
    if frame is None:
        raise ConfigurationError(
            "ElasticCallback was started by something else than keras.Model.fit, which it relies "
            "on. Write a custom loop with hvd_elastic_keras.elastic.run instead."
        )
    values = frame.f_locals
    missing = [name for name in NAMES if name not in values]
    if missing:
        raise ConfigurationError(
            f"keras.Model.fit of Keras {keras.__version__} has no {', '.join(missing)}, which "
            "ElasticCallback relies on. Install a tested release: pip install 'keras>=3.8,<3.16'."
        )
    iterator = values["epoch_iterator"]
    return FitCall(
        model=values["self"],
        callbacks=list(values["callbacks"].callbacks),
        epochs=values["epochs"],
        initial_epoch=values["initial_epoch"],
        verbose=1 if values["verbose"] == "auto" else int(values["verbose"]),
        adapter=iterator.data_adapter,
        steps_per_epoch=iterator.steps_per_epoch,
        validation=_validation_adapter(values),
        validation_steps=values["validation_steps"],
        validation_freq=values["validation_freq"],
        data=tuple(values.get(name) for name in ("x", "y", *VALIDATION_NAMES)),
    )


def _validation_adapter(values: dict[str, Any]) -> Any:
    if values["validation_data"] is None:
        return None
    x, y, sample_weight = (values[name] for name in VALIDATION_NAMES)
    return data_adapters.get_data_adapter(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=values["validation_batch_size"] or values["batch_size"],
        steps_per_epoch=values["validation_steps"],
        shuffle=False,
        class_weight=None,
    )


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Makes a running `fit` go on with another epoch. `None` means the epoch it was given."""
    model._initial_epoch = epoch


def initial_epoch_of(model: keras.Model) -> int | None:
    """Returns the first epoch of `fit`, if a callback such as `BackupAndRestore` has set one."""
    return getattr(model, "_initial_epoch", None)


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
    if not adapter._shuffle or order_is_free():
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
