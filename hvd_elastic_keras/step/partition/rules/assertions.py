"""What fails if something is wrong: `tf.debugging.assert_*` and `check_numerics`.

A condition on rows is that all of them are as they should be. So each worker looks at its own rows,
and nobody waits: a worker that finds a wrong one fails, and that ends the job.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hvd_elastic_keras.keras_internals.emission import nodes_within
from hvd_elastic_keras.step.partition.operations.states import REPLICATED, Decision, Rule, View
from hvd_elastic_keras.step.partition.rules.elementwise import elementwise

CONDITIONS = frozenset(("If", "StatelessIf"))
WITHIN_GUARDS = frozenset(("Assert", "Const", "Identity", "NoOp"))


def is_guard(op: Any) -> bool:
    """Whether it is a condition that does nothing but to assert, as TensorFlow makes them."""
    if op.type not in CONDITIONS:
        return False
    _, *within = nodes_within(op)
    kinds = {node.op for node in within}
    return "Assert" in kinds and kinds <= WITHIN_GUARDS


def assertion(v: View) -> Decision:
    """Takes its condition, and what is shown if it fails, as a worker has them."""
    return Decision(v.ins, (REPLICATED,) * len(v.op.outputs), how="assertion")


def guard(v: View) -> Decision:
    """An assertion in the branch of a condition; others have no rule."""
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
