"""Runs operations that call functions, for a worker: calls, loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.captured_step import assigned_in, is_for_xla
from hvd_elastic_keras.step.partition.plan import Plan, PlannedOperation
from hvd_elastic_keras.step.partition.rules.states import HANDLE

if TYPE_CHECKING:
    from hvd_elastic_keras.step.partition.execution import PartialStep


def run_called(step: PartialStep, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
    """Runs a function.

    A function for XLA stays one: Keras has these for operations that a CPU cannot do without
    XLA.
    """
    (plan,) = planned.bodies
    if not is_for_xla(planned.op) or plan.reductions or plan.moments:
        return step.run(plan, inputs)
    function = tf.function(lambda: step.run(plan, inputs), jit_compile=True, autograph=False)
    with step.variables.not_in_place():
        made = function.get_concrete_function()()
    return list(made) if isinstance(made, list | tuple) else [made]


def run_loop(step: PartialStep, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
    """Runs a loop."""
    body, condition = planned.bodies
    if tf.executing_eagerly():
        while bool(step.run(condition, inputs)[0]):
            inputs = step.run(body, inputs)
        return inputs
    handles = [i for i, s in enumerate(planned.decision.want) if s == HANDLE]
    # Variables that the loop only reads do not become results of the loop.
    keys = _assigned_by(planned.bodies[:1], inputs)
    step.variables.take_back(keys)

    def packed(values: Sequence[Any]) -> list[Any]:
        others = [v for i, v in enumerate(values) if i not in handles]
        return [*others, *(tf.identity(step.variables.values[k]) for k in keys)]

    def unpacked(flat: Sequence[Any]) -> list[Any]:
        left = iter(flat)
        values = [inputs[i] if i in handles else next(left) for i in range(len(inputs))]
        step.variables.values.update(zip(keys, left, strict=True))
        return values

    shapes = [t.shape for i, t in enumerate(planned.op.outputs) if i not in handles] + [
        step.variables.values[k].shape for k in keys
    ]
    before = len(step.collectives.results)
    with step.variables.not_in_place():
        flat = tf.while_loop(
            lambda *flat: step.run(condition, unpacked(flat))[0],
            lambda *flat: packed(step.run(body, unpacked(flat))),
            packed(inputs),
            shape_invariants=shapes,
            # A collective has one name in all turns of the loop, so they follow each other.
            parallel_iterations=step.turns_at_once,
        )
    if len(step.collectives.results) > before:
        step.collectives.results += flat
    return unpacked(flat)


def _assigned_by(plans: Sequence[Plan], inputs: Sequence[Any]) -> list[str]:
    """Returns the handles of variables that functions with these inputs assign to."""
    found: set[str] = set()
    for plan in plans:
        pairs = zip(plan.graph.inputs, inputs, strict=True)
        found.update(assigned_in(plan.graph, {t.name: v for t, v in pairs if isinstance(v, str)}))
    return sorted(found)


def run_branches(step: PartialStep, planned: PlannedOperation, inputs: list[Any]) -> list[Any]:
    """Runs one of two branches."""
    then, otherwise = planned.bodies
    if tf.executing_eagerly():
        return step.run(then if bool(inputs[0]) else otherwise, inputs[1:])
    keys = [k for k in _assigned_by(planned.bodies, inputs[1:]) if not step.variables.given_up(k)]
    step.variables.take_back(keys)
    step.variables.follow_from([t for t in inputs if tf.is_tensor(t)])
    before, num_results = dict(step.variables.values), len(step.collectives.results)

    def branch(plan: Plan) -> list[Any]:
        step.variables.values = dict(before)
        outputs = step.run(plan, inputs[1:])
        return [
            *outputs,
            *(tf.identity(step.variables.values[k]) for k in keys),
            tf.constant(True),
        ]

    with step.variables.when_ready():
        flat = tf.cond(inputs[0], lambda: branch(then), lambda: branch(otherwise))
    flat = list(flat) if isinstance(flat, list | tuple) else [flat]
    if len(step.collectives.results) > num_results:
        step.collectives.results += flat
    count = len(planned.op.outputs)
    step.variables.values = before | dict(zip(keys, flat[count:-1], strict=True))
    return flat[:count]
