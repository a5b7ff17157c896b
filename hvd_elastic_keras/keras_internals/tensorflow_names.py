"""Private names of TensorFlow."""

from __future__ import annotations

from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function.autograph_util import py_func_from_autograph
from tensorflow.python.eager.polymorphic_function.polymorphic_function import (
    Function as PolymorphicFunction,
)
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

__all__ = [
    "PolymorphicFunction",
    "WhileBodyFuncGraph",
    "ag_ctx",
    "gen_random_ops",
    "gen_stateless_random_ops",
    "gen_stateless_random_ops_v2",
    "is_op_determinism_enabled",
    "py_func_from_autograph",
]
