"""Explains errors of models that expect a whole batch and fail on a part of it.

The cause can only be read from the text of TensorFlow's error. The text shows two shapes, one with
the size of a batch and the other with the size of a micro-batch, or a size that is None while a
step is traced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.model_building import first_sentence
from hvd_elastic_keras.keras_internals.model_errors import UNKNOWN_SIZE

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
        f"{remedy if smaller else ''}."
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
