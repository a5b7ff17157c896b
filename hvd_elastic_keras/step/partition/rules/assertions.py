"""Operations that fail if something is wrong: `tf.debugging.assert_*` and `check_numerics`.

A condition on rows must hold for all rows. So each worker checks its own rows, and no worker waits
for others. A worker that finds a wrong row fails, and this ends the job.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hvd_elastic_keras.keras_internals.traced_graphs import nodes_within
from hvd_elastic_keras.step.partition.operations.states import REPLICATED, Decision, Rule, View
from hvd_elastic_keras.step.partition.rules.elementwise import elementwise

CONDITIONS = frozenset(("If", "StatelessIf"))
WITHIN_GUARDS = frozenset(("Assert", "Const", "Identity", "NoOp"))


def is_guard(op: Any) -> bool:
    """Whether an operation is a condition that only asserts, in the form that TensorFlow makes."""
    if op.type not in CONDITIONS:
        return False
    _, *within = nodes_within(op)
    kinds = {node.op for node in within}
    return "Assert" in kinds and kinds <= WITHIN_GUARDS


def assertion(v: View) -> Decision:
    """Takes its inputs as a worker has them: its condition, and values to show if it fails."""
    return Decision(v.ins, (REPLICATED,) * len(v.op.outputs), how="assertion")


def guard(v: View) -> Decision:
    """An assertion in the branch of a condition. Other conditions have no rule."""
    return assertion(v) if is_guard(v.op) else v.replicated("no rule")


def check_numerics(v: View) -> Decision:
    """Fails for numbers that are not finite."""
    decision = elementwise(v)
    return dataclasses.replace(decision, how="assertion") if v.has_rows else decision


RULES: dict[str, Rule] = {
    "Assert": assertion,
    **dict.fromkeys(CONDITIONS, guard),
    "CheckNumerics": check_numerics,
}
