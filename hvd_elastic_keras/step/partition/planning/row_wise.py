"""Proves that a function treats the rows of a batch one by one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.step.partition.captured_step import CapturedStep, Leaf, captured_by
from hvd_elastic_keras.step.partition.plan import Plan
from hvd_elastic_keras.step.partition.planning.analysis import planned_rows
from hvd_elastic_keras.step.partition.planning.decide import NotPartitionedError
from hvd_elastic_keras.step.partition.rules.states import PARTIAL, How, is_sharded, sharded

ROWS = 64
"""The number of rows that the plan assumes; any would do."""
BY_ROWS = frozenset(
    {
        How.RUN,
        How.ALIAS,
        How.VARIABLE,
        How.SHAPE,
        How.ASSERTION,
        How.CALL,
        How.COND,
        How.LOOP,
    }
)
"""How operations are computed that give a worker's rows if they are given these rows."""


def is_row_wise(function: Any) -> bool:
    """Whether each row of the results follows from the same row of all inputs.

    The function then gives the rows of its whole results if it is called for some rows only. It may
    use the number of rows in shapes, but nowhere else, and draw no random numbers.

    Args:
      function: a `tf.ConcreteFunction` of dense tensors, which all have the rows along axis 0.
    """
    graph = function.graph
    captured = [inner.name for _, inner in graph.captures]
    inputs = [t for t in graph.inputs if t.name not in captured]
    if not all(t.shape.rank and t.shape[0] is None for t in inputs):
        return False
    try:
        plan, one_each = planned_rows(_captured_step(function, inputs), ROWS)
    except (NotPartitionedError, ConfigurationError, NotImplementedError):
        return False
    rows = all(state == sharded(0) for state in plan.outs)
    return rows and one_each and _by_rows(plan)


def _by_rows(plan: Plan) -> bool:
    if plan.reductions or plan.moments:
        return False
    sizes: set[str] = set()
    """Tensors that are computed from a number of rows: smaller numbers for some of the rows."""
    for planned in plan.operations:
        decision = planned.decision
        states = (*decision.want, *decision.out)
        if decision.how not in BY_ROWS or decision.whole:
            return False
        shape = decision.local_size[0] if decision.local_size else None
        inputs = [t.name for i, t in enumerate(planned.op.inputs) if i != shape]
        if decision.how == How.SHAPE:
            sizes.update(t.name for t in planned.op.outputs)
        elif not sizes.isdisjoint(inputs):
            if planned.bodies or any(map(is_sharded, states)):
                return False
            sizes.update(t.name for t in planned.op.outputs)
        if planned.cut_again or PARTIAL in states or not all(map(_by_rows, planned.bodies)):
            return False
    return True


def _captured_step(function: Any, inputs: list[Any]) -> CapturedStep:
    graph = function.graph
    return CapturedStep(
        graph,
        tuple(Leaf(tf.TensorSpec(t.shape, t.dtype), (t,), 1) for t in inputs),
        None,
        *captured_by(graph),
        list,
        function,
        function,
    )
