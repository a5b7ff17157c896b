"""Private names of TensorFlow."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.checkpoint import checkpoint_management
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
from tensorflow.python.framework.random_seed import DEFAULT_GRAPH_SEED
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
    handle_data_util,
)
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

__all__ = [
    "DEFAULT_GRAPH_SEED",
    "DefinedFunction",
    "PolymorphicFunction",
    "WhileBodyFuncGraph",
    "ag_ctx",
    "checkpoint_management",
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


def element_type_of_list(tensor: Any) -> tf.DType:
    """Returns the type of the elements of a TensorList in a graph."""
    data = handle_data_util.get_resource_handle_data(tensor)
    return tf.as_dtype(data.shape_and_type[0].dtype)


def draw_unseeded_from(number: int) -> None:
    """Makes operations without any seed draw what follows from a number.

    An operation with a seed of its own draws as without this call. `tf.random.set_seed` would
    change that, too: the same `shuffle(n, seed=1)` would then have another order in each job.
    """
    tf.random.set_seed(DEFAULT_GRAPH_SEED)
    eager_context()._rng = random.Random(number)
