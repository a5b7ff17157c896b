"""Private names of TensorFlow, and what they tell about a `tf.data.Dataset`.

The functions read the parts of a data set and the arguments that these parts were given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.data.ops import map_op, shuffle_op
from tensorflow.python.eager.context import context as eager_context
from tensorflow.python.eager.context import global_seed
from tensorflow.python.eager.execute import execute
from tensorflow.python.eager.polymorphic_function.autograph_util import py_func_from_autograph
from tensorflow.python.eager.polymorphic_function.polymorphic_function import (
    Function as PolymorphicFunction,
)
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework import op_def_registry, tensor_util
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.framework.function import _DefinedFunction as DefinedFunction
from tensorflow.python.framework.ops import get_default_graph
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
    handle_data_util,
)
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

__all__ = [
    "DefinedFunction",
    "PolymorphicFunction",
    "WhileBodyFuncGraph",
    "ag_ctx",
    "eager_context",
    "element_type_of_list",
    "execute",
    "framework_config",
    "gen_random_ops",
    "gen_stateless_random_ops",
    "gen_stateless_random_ops_v2",
    "get_default_graph",
    "global_seed",
    "is_op_determinism_enabled",
    "op_def_registry",
    "parallel_for",
    "py_func_from_autograph",
    "tensor_util",
]

ATTRIBUTES = {
    shuffle_op._ShuffleDataset: ("_seed", "_seed2", "_reshuffle_each_iteration"),
    map_op._ParallelMapDataset: ("_deterministic", "_num_parallel_calls"),
}
"""Attributes that the constructors set, and that are read here."""


def element_type_of_list(tensor: Any) -> tf.DType:
    """Returns the type of the elements of a TensorList in a graph."""
    data = handle_data_util.get_resource_handle_data(tensor)
    return tf.as_dtype(data.shape_and_type[0].dtype)


def parts_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all datasets that it is made of."""
    todo = [dataset]
    while todo:
        part = todo.pop()
        yield part
        todo += part._inputs()


def functions_of_part(part: tf.data.Dataset) -> Sequence[Any]:
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
