"""The first steps of a worker, which it takes alone: errors become a one-line message.

A model is tried on a few real examples before. Matching shapes are not enough: a label may be out
of range, or a string may stand for a number.

If a model expects a whole batch and fails on a part of it, the cause can only be read from the text
of TensorFlow's error. The text shows two shapes, one with the size of a batch and the other with
the size of a micro-batch, or a size that is None while a step is traced.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError, DataError, ElasticError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.keras_internals.build_by_trace import has_own_step
from hvd_elastic_keras.keras_internals.model_building import (
    describe,
    first_sentence,
    has_fixed_batch_size,
)
from hvd_elastic_keras.keras_internals.model_errors import UNKNOWN_SIZE, remedy
from hvd_elastic_keras.observe.notices import notices

TRIED_EXAMPLES = 32
TRAINING_DATA, VALIDATION_DATA = "the training data", "the validation data"
"""Names of the data, for messages."""


def try_first_examples(model: keras.Model, source: Input, name: str) -> None:
    """Computes the loss of the first examples, without any effect on weights.

    Args:
      name: name of the data, for messages.

    Raises:
      DataError: the model cannot compute the loss.
    """
    whole = source.first_batch()
    batch = whole
    if not has_fixed_batch_size(model):
        batch = structure.cut(whole, 0, TRIED_EXAMPLES)
    count = structure.num_examples(batch)
    _warn_of_what_is_not_finite(batch, name)
    if has_own_step(model):
        return  # its own step may do anything with a batch
    error = _error_on(model, batch)
    if error is None or (source.has_one_size and _error_on(model, whole) is None):
        return
    says = first_sentence(error)
    raise DataError(
        f"The model fails on the first {count} examples of {name}, which are "
        f"{describe(source.batch_spec)}: {type(error).__name__}: {says} "
        f"{remedy(says, source.batch_spec) or 'Change the data, the model or its loss.'}"
    ) from error


def _error_on(model: keras.Model, batch: Any) -> Exception | None:
    """Returns the error of the model or its loss on a batch; None if there is none."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    try:
        # The scope keeps variables unchanged. Regularizers ask the scope for the weights.
        weights = [(variable, variable.value) for variable in model.trainable_variables]
        with keras.StatelessScope(weights, collect_losses=True):
            y_pred = model(x, training=False)
            model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
    except Exception as error:  # layers and losses may raise anything
        return error
    return None


def _warn_of_what_is_not_finite(batch: Any, name: str) -> None:
    floating = [
        np.asarray(leaf)
        for leaf in tf.nest.flatten(batch)
        if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating
    ]
    if not all(np.isfinite(leaf.astype(np.float64)).all() for leaf in floating):
        notices.tell(
            f"warning: among the first examples of {name} are values that are not finite (NaN or "
            "infinity); the loss may become so, too."
        )


_SHAPE = r"\[(\d+(?:, ?\d+)*)\]"
_PAIRS_OF_SHAPES = (
    rf"Incompatible shapes: {_SHAPE} vs\. {_SHAPE}",
    rf"shape\[\d+\] = {_SHAPE} vs\. shape\[\d+\] = {_SHAPE}",
    rf"Shape of tensor \S* ?{_SHAPE} is not compatible with expected shape {_SHAPE}",
    rf"[Ss]hapes are {_SHAPE} and {_SHAPE}",
    rf"[Ss]hapes: {_SHAPE}, {_SHAPE}",
    r"target\.shape=\((\d+(?:, ?\d+)*),?\), output\.shape=\((\d+(?:, ?\d+)*),?\)",
    r"[Ss]hapes \((\d+(?:, ?\d+)*),?\) and \((\d+(?:, ?\d+)*),?\)",
)
_PAIRS_OF_SIZES = (
    r"tensor with (\d+) values, but the requested shape has (\d+)",
    r"Expected dimension (\d+) at axis 0 of the input shaped \S+ but got dimension (\d+)",
    r"Dimension 0 in both shapes must be equal, but are (\d+) and (\d+)",
)
_MATRICES = r"Matrix size-incompatible: In\[0\]: \[\d+, ?(\d+)\], In\[1\]: \[(\d+), ?\d+\]"
_BEYOND = (
    r"slice index (\d+) of dimension 0 out of bounds",
    r"along split_dim if not fully specified\.\s+Got: (\d+)",
)


def explained(
    error: BaseException, micro_batch_size: int, batch_size: int
) -> ConfigurationError | None:
    """Explains an error of a step that is traced or first run on a micro-batch.

    Args:
      error: the error that the model, the loss or `train_step` has raised.
      micro_batch_size: the step was called with at most this number of examples.
      batch_size: examples of a whole batch.

    Returns:
      The explanation as an error, or None if the text points to no such cause.
    """
    text = str(error)
    unknown = any(re.search(pattern, text) for pattern in UNKNOWN_SIZE)
    smaller = micro_batch_size < batch_size
    if not (unknown or (smaller and _counts_on(text, micro_batch_size, batch_size))):
        return None
    what = f"a micro-batch of {micro_batch_size} of the {batch_size} examples of a batch"
    cause = (
        "counts on a number of examples that is known while the step is traced, where x.shape[0] "
        "is None"
        if unknown
        else f"counts on all {batch_size} examples"
    )
    remedy = (
        f", or say micro_batch_size={batch_size}: batches are computed whole then, each by one "
        "worker, while the others wait as spares"
    )
    return ConfigurationError(
        f"The model fails on {what if smaller else 'batches of any size'}: "
        f"{type(error).__name__}: {first_sentence(error)} A layer, the loss or train_step {cause}. "
        "Take the number from the data, keras.ops.shape(x)[0] in place of a number or x.shape[0]"
        f"{remedy if smaller and not unknown else ''}."
    )


def _counts_on(text: str, micro_batch_size: int, batch_size: int) -> bool:
    """Returns whether a text names the size of a batch next to the size of a micro-batch."""
    for low, high in map(sorted, _pairs(text)):
        nothing_left = low == 0 < high <= micro_batch_size
        whole = low * batch_size <= high * micro_batch_size and not high % batch_size
        if low < high and (nothing_left or whole):
            return True
    for match in re.finditer(_MATRICES, text):
        # Other sizes are more likely numbers of features.
        if int(match[1]) == batch_size and int(match[2]) <= micro_batch_size:
            return True
    beyond = (int(m[1]) for pattern in _BEYOND for m in re.finditer(pattern, text))
    return any(micro_batch_size <= size <= batch_size for size in beyond)


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Yields pairs of sizes that should be equal, but are not."""
    for pattern in _PAIRS_OF_SHAPES:
        for match in re.finditer(pattern, text):
            one, other = ([int(n) for n in shape.split(",")] for shape in match.groups())
            if len(one) == len(other):
                yield one[0], other[0]
    for pattern in _PAIRS_OF_SIZES:
        for match in re.finditer(pattern, text):
            yield int(match[1]), int(match[2])


@contextlib.contextmanager
def explained_first_steps(
    model: keras.Model, train: Input, evaluate: Input | None
) -> Iterator[None]:
    """Checks whether the data or the sizes of batches have caused an error of the first steps.

    Raises:
      ConfigurationError: the data or the sizes have caused the error.
    """
    try:
        yield
    except ElasticError:
        raise
    except Exception as error:  # the user's layers, losses and steps may raise anything
        for source in (train, evaluate):
            if source is not None:
                found = explained(error, source.micro_batch_size, source.global_batch_size)
                if found is not None:
                    raise found from error
        for source, name in ((train, TRAINING_DATA), (evaluate, VALIDATION_DATA)):
            if source is not None:
                try_first_examples(model, source, name)
        raise
