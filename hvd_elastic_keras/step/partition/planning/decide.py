"""Decides how one operation is computed, by the rule of its type."""

from __future__ import annotations

import dataclasses
from typing import Any

from hvd_elastic_keras.keras_internals.traced_graphs import PYTHON_CALLS
from hvd_elastic_keras.step.partition import within_micro_batches
from hvd_elastic_keras.step.partition.captured_step import WRITES
from hvd_elastic_keras.step.partition.rules import RULES
from hvd_elastic_keras.step.partition.rules.elementwise import is_guard
from hvd_elastic_keras.step.partition.rules.repeatable import unrepeatable
from hvd_elastic_keras.step.partition.rules.sizes import Sizes
from hvd_elastic_keras.step.partition.rules.states import (
    CONJUNCT,
    HANDLE,
    REPLICATED,
    Decision,
    How,
    State,
    UnknownSizeError,
    View,
)
from hvd_elastic_keras.step.partition.within_micro_batches import is_within

NO_RULE = dict.fromkeys(PYTHON_CALLS, "Python code, which has to do the same on all workers")


class NotPartitionedError(Exception):
    """Other workers cannot repeat an operation, or its effect on variables is unknown."""


def decided(op: Any, states: tuple[State, ...], sizes: Sizes) -> Decision:
    """Returns what is decided about an operation. It is the same in each walk.

    Args:
      states: the states of its inputs.
      sizes: sizes of the tensors of its graph.

    Raises:
      NotPartitionedError: other workers cannot repeat the operation.
    """
    found: Decision | None = sizes.decisions.get((op, states))
    if found is None:
        found = sizes.decisions[op, states] = _decision(op, states, sizes)
    return found


def _decision(op: Any, states: tuple[State, ...], sizes: Sizes) -> Decision:
    view = View(op, states, sizes)
    if op.type == "Const":
        return Decision((), (REPLICATED,))
    if op.type in WRITES and HANDLE in states:
        return Decision(with_handles(states), (), how=How.VARIABLE)
    if op.type in ("ReadVariableOp", "VariableShape", "VarIsInitializedOp"):
        return Decision(states, (REPLICATED,), how=How.VARIABLE)
    if op.type == "Identity" and states == (HANDLE,):
        return Decision(states, (HANDLE,), how=How.VARIABLE)
    rule = within_micro_batches.decision if is_within(op) else RULES.get(op.type)
    if rule is None and (why := unrepeatable(op)):
        raise NotPartitionedError(why)
    if rule is None and HANDLE in states:
        raise NotPartitionedError(f"the effect of {op.type} {op.name} on variables is unknown")
    if rule is None:
        return view.replicated(NO_RULE.get(op.type, "no rule"))
    try:
        found = rule(view)
        if found.local_size is None:
            return found
        return dataclasses.replace(found, forms=view.output_forms)
    except UnknownSizeError:
        return view.replicated("a size is unknown")


def taken(op: Any, state: State) -> State:
    """Returns the state in which a rule sees an input."""
    asserts = op.type == "Assert" or is_guard(op)
    return REPLICATED if state == CONJUNCT and not asserts else state


def with_handles(states: tuple[State, ...]) -> tuple[State, ...]:
    """Returns the states of inputs of which all but variables' handles are whole."""
    return tuple(s if s == HANDLE else REPLICATED for s in states)
