"""Reads the parts of a `tf.data.Dataset` and the arguments that these parts were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import map_op, shuffle_op

ATTRIBUTES = {
    shuffle_op._ShuffleDataset: ("_seed", "_seed2", "_reshuffle_each_iteration"),
    map_op._ParallelMapDataset: ("_deterministic", "_num_parallel_calls"),
}
"""Attributes that the constructors set, and that are read here."""


def parts_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all datasets that it is made of."""
    todo = [dataset]
    while todo:
        part = todo.pop()
        yield part
        todo += part._inputs()


def functions_of(part: tf.data.Dataset) -> Sequence[Any]:
    """Returns the functions that one call of `map`, `interleave` and so on added to a dataset."""
    return part._functions()  # type: ignore[no-any-return]


def reshuffles(part: tf.data.Dataset) -> bool:
    """Whether a part is a shuffle with another order for each iterator."""
    return _is_shuffle(part) and bool(getattr(part, "_reshuffle_each_iteration", True))


def is_repeat(part: tf.data.Dataset) -> bool:
    """Whether a part reads its input again and again."""
    return "Repeat" in type(part).__name__


def is_unseeded_shuffle(part: tf.data.Dataset) -> bool:
    """Whether a part is a shuffle whose order cannot be reproduced."""
    seeds = [getattr(part, name, None) for name in ("_seed", "_seed2")]
    return _is_shuffle(part) and all(s is not None and int(s) == 0 for s in seeds)


def need_not_keep_order(part: tf.data.Dataset) -> bool:
    """Whether a part was given `deterministic=False`."""
    return getattr(part, "_deterministic", None) in (False, "false")


def is_parallel(part: tf.data.Dataset) -> bool:
    """Whether a part's arguments allow several calls of its function at the same time."""
    calls = getattr(part, "_num_parallel_calls", None)
    count = 1 if calls is None else tf.get_static_value(calls)
    return "Parallel" in type(part).__name__ and count != 1


def missing_attributes() -> list[str]:
    """Returns the attributes read above that the installed TensorFlow lacks, as sentences.

    The names are read from the code of the constructors. Making a dataset here would initialise
    TensorFlow, and the user's script could no longer set threads or devices.
    """
    return [
        f"{kind.__name__} has no {name}"
        for kind, names in ATTRIBUTES.items()
        for name in names
        if name not in kind.__init__.__code__.co_names
    ]


def _is_shuffle(part: tf.data.Dataset) -> bool:
    return "Shuffle" in type(part).__name__
