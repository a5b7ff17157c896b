"""Plans operations that call functions: calls, loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_elastic_keras.keras_internals.traced_graphs import FUNCTIONS, body_of
from hvd_elastic_keras.step.partition.captured_step import is_for_xla
from hvd_elastic_keras.step.partition.plan import Plan
from hvd_elastic_keras.step.partition.planning.decide import with_handles
from hvd_elastic_keras.step.partition.planning.tensor_states import Known
from hvd_elastic_keras.step.partition.rules.elementwise import is_guard
from hvd_elastic_keras.step.partition.rules.sizes import common_values, same_values
from hvd_elastic_keras.step.partition.rules.states import (
    EMPTY,
    PARTIAL,
    REPLICATED,
    Decision,
    How,
    State,
    joined,
)
from hvd_elastic_keras.step.partition.within_micro_batches import is_within

if TYPE_CHECKING:
    from hvd_elastic_keras.step.partition.planning.region import Region

BRANCHES = ("then_branch", "else_branch")


def is_planned_through(graph: Any, op: Any) -> bool:
    """Whether the operation calls functions whose bodies are planned."""
    names = () if is_within(op) or is_guard(op) else FUNCTIONS.get(op.type, ())
    return bool(names) and all(body_of(graph, op, n) is not None for n in names)


def plan_functions(
    region: Region, op: Any, states: tuple[State, ...], level: int
) -> tuple[Decision, tuple[Plan, ...]]:
    """Plans the functions that an operation of a region calls.

    Args:
      states: the states of its inputs.
      level: rounds of collectives before its inputs.

    Returns:
      What is decided about the operation, and the plans of the functions.
    """
    if "body" in FUNCTIONS[op.type]:
        return _loop(region, op, states, level)
    if "then_branch" in FUNCTIONS[op.type]:
        return _branches(region, op, states, level)
    return _call(region, op, states, level)


def same_known(one: Sequence[Known], other: Sequence[Known]) -> bool:
    """Whether the same is known of two lists of tensors."""
    return all(a[0] == b[0] and same_values(a[1], b[1]) for a, b in zip(one, other, strict=True))


def _call(
    region: Region, op: Any, states: tuple[State, ...], level: int
) -> tuple[Decision, tuple[Plan, ...]]:
    walk, tensors = region.walk, region.tensors
    saved, before = walk.saved, len(walk.collectives)
    inner = region.inner(op, "f", tensors.known(op.inputs), states)
    plan = inner.planned(states, [level] * len(states), None, op.name)
    if is_for_xla(op) and len(walk.collectives) > before:
        walk.restore(saved)  # XLA knows no collectives
        states = with_handles(states)
        pairs = zip(op.inputs, states, strict=True)
        level = tensors.bring_all(pairs, f"XLA's {op.name}", level)
        inner = region.inner(op, "f", tensors.known(op.inputs), states, cuts=False)
        plan = inner.planned(states, [level] * len(states), None, op.name)
        walk.whole.append(f"{op.type} {op.name}: XLA knows no collectives")
    tensors.give(op.outputs, inner.tensors.known(plan.graph.outputs))
    return Decision(states, plan.outs, how=How.CALL), (plan,)


def _loop(
    region: Region, op: Any, states: tuple[State, ...], level: int
) -> tuple[Decision, tuple[Plan, ...]]:
    """Plans a loop, once the states and sizes of its variables have reached a fixed point."""
    walk = region.walk
    known = region.tensors.known(op.inputs)
    levels = [level] * len(states)
    walk.loops += 1
    while True:
        saved = walk.saved
        inner = region.inner(op, "body", known, states)
        plan = inner.planned(states, levels, None, "")
        found = inner.tensors.known(plan.graph.outputs)
        later = [_common(*pair) for pair in zip(known, found, states, plan.outs, strict=True)]
        joint = tuple(
            joined(a, b, d) for a, b, (d, _) in zip(states, plan.outs, later, strict=True)
        )
        walk.restore(saved)
        if joint == states and same_known(later, known):
            break
        states, known = joint, later
    inner = region.inner(op, "body", known, states)
    body = inner.planned(states, levels, states, f"the next round of {op.name}")
    inner = region.inner(op, "cond", known, states)
    condition = inner.planned(states, levels, [REPLICATED], f"the condition of {op.name}")
    walk.loops -= 1
    region.tensors.give(op.outputs, known)
    return Decision(states, states, how=How.LOOP), (body, condition)


def _branches(
    region: Region, op: Any, states: tuple[State, ...], level: int
) -> tuple[Decision, tuple[Plan, ...]]:
    inputs, tensors = op.inputs[1:], region.tensors
    known = tensors.known(inputs)
    plans, found, count = _tried_branches(region, op, states[1:], level)
    if count:
        # Sums that a branch needs are made before the branch, with all other sums.
        whole = tuple(REPLICATED if s == PARTIAL else s for s in states[1:])
        tried, found_then, fewer = _tried_branches(region, op, whole, level)
        if fewer < count:
            states, plans, found = (states[0], *whole), tried, found_then
            level = tensors.bring_all(zip(inputs, whole, strict=True), f"If {op.name}", level)
    levels, outs = [level] * len(inputs), [plan.outs for plan in plans]
    both = [_common(*pair) for pair in zip(*found, *outs, strict=True)]
    joint = [joined(a, b, d) for a, b, (d, _) in zip(*outs, both, strict=True)]
    plans = []
    for name in BRANCHES:
        inner = region.inner(op, name, known, states[1:])
        plans.append(inner.planned(states[1:], levels, joint, f"the result of {op.name}"))
    tensors.give(op.outputs, both)
    return Decision((REPLICATED, *states[1:]), tuple(joint), how=How.COND), tuple(plans)


def _tried_branches(
    region: Region, op: Any, states: tuple[State, ...], level: int
) -> tuple[list[Plan], list[list[Known]], int]:
    """Returns plans of both branches, what is known of results, and the collectives' number."""
    walk = region.walk
    saved, before = walk.saved, len(walk.collectives)
    plans, found = [], []
    for name in BRANCHES:
        inner = region.inner(op, name, region.tensors.known(op.inputs[1:]), states)
        plans.append(inner.planned(states, [level] * len(states), None, ""))
        found.append(inner.tensors.known(plans[-1].graph.outputs))
    count = len(walk.collectives) - before
    walk.restore(saved)
    return plans, found, count


def _common(one: Known, other: Known, state: State, other_state: State) -> Known:
    """Returns what is known of a tensor of one of two forms. An empty list fits any form."""
    values = common_values(one[1], other[1])
    if EMPTY in (state, other_state):
        return (other if state == EMPTY else one)[0], values
    dims, others = one[0], other[0]
    if dims is None or others is None or len(dims) != len(others):
        return None, values
    return tuple(a if a == b else None for a, b in zip(dims, others, strict=True)), values
