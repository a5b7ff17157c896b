"""Private names of TensorFlow."""

from __future__ import annotations

from tensorflow.python.eager.context import global_seed
from tensorflow.python.framework.config import is_op_determinism_enabled
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

__all__ = [
    "WhileBodyFuncGraph",
    "gen_random_ops",
    "gen_stateless_random_ops",
    "gen_stateless_random_ops_v2",
    "global_seed",
    "is_op_determinism_enabled",
]
