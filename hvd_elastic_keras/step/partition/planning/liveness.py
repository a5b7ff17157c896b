"""Removes operations that nobody needs from a plan (dead code elimination).

`without_unused_copies` removes one of two ways to compute a tensor: the analysis plans small
tensors from partial sums and from whole ones, before it knows which will be used.

`without_rows` removes all that a worker without rows would compute for the collectives only. Such a
worker gives zeros to the collectives, so it need not know how the others compute their rows.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.captured_step import WRITES
from hvd_elastic_keras.step.partition.plan import Analysis, Names, Plan, PlannedOperation
from hvd_elastic_keras.step.partition.rules.states import HANDLE, REPLICATED, How, State

Shape = tuple[int, ...]


def without_unused_copies(plan: Plan) -> Plan:
    """Returns the plan without the ways that nobody uses to compute what is planned in two ways."""
    makers = _Makers(plan)
    count = collections.Counter(planned.op for planned in plan.operations)
    first = {i for i, planned in enumerate(plan.operations) if count[planned.op] == 1}
    averaged = (m.mean.inputs[0] for moments in plan.moments.values() for m in moments)
    for tensor in (*_exchanged(plan), *averaged):
        first |= makers.of_any_state(tensor)
    needed = _needed(plan, makers, first)
    kept = (p for i, p in enumerate(plan.operations) if i in needed)
    return dataclasses.replace(plan, operations=tuple(kept))


def without_rows(analysis: Analysis) -> Analysis:
    """Returns the plan of a worker without rows. It computes only what follows from the round.

    The plan stays as it is if the step has several rounds, if a collective stands alone, or if a
    tensor that goes into the round is a text or has an unknown shape.
    """
    plan = analysis.plan
    if analysis.num_rounds != 1 or not analysis.ends_with_groups or plan.moments:
        return analysis
    names = Names(plan)
    exchanged = {names.of(t.name): plan.sum_shapes.get(t.name) for t in _exchanged(plan)}
    effects = {i for i, planned in enumerate(plan.operations) if _has_effect(planned)}
    needed = _needed(plan, _Makers(plan, known=exchanged), effects)
    operations = []
    for i, planned in enumerate(plan.operations):
        zeros = None
        if i not in needed and planned.decision.how != How.ALIAS:
            zeros = {}
            for k, tensor in enumerate(planned.op.outputs):
                name = names.of(tensor.name)
                if name in exchanged:
                    shape = exchanged[name] or _shape(tensor, planned.decision.out[k])
                    if shape is None or tensor.dtype == tf.string:
                        return analysis
                    zeros[k] = shape
        operations.append(dataclasses.replace(planned, zeros=zeros))
    plan = dataclasses.replace(plan, operations=tuple(operations))
    return dataclasses.replace(analysis, plan=plan)


def _exchanged(plan: Plan) -> Iterator[Any]:
    """Yields the tensors that travel in groups."""
    for groups in (plan.reductions, plan.gathers):
        for tensors in groups.values():
            yield from tensors


def _shape(tensor: Any, state: State) -> Shape | None:
    """Returns the shape of a worker's part, with as few rows as possible; None if not known."""
    if tensor.shape.rank is None:
        return None
    shape = tensor.shape.as_list()
    if state.axis is not None:
        shape[state.at_axis] = state.blocks or 1
    return None if None in shape else tuple(shape)


def _has_effect(planned: PlannedOperation) -> bool:
    """Whether it may assign to a variable, or gives no result and so does something else.

    Assertions before the first round of collectives are about rows.
    """
    if planned.decision.how == How.ASSERTION:
        return planned.level > 0
    op = planned.op
    within = (p for plan in planned.bodies for p in plan.operations)
    return op.type in WRITES or not op.outputs or any(map(_has_effect, within))


class _Makers:
    """The operations that make each tensor of a plan, by their numbers.

    Args:
      known: names of tensors whose whole values need not be made.
    """

    def __init__(self, plan: Plan, known: Collection[str] = ()) -> None:
        self._known = known
        self._names = Names(plan)
        self._aliases: dict[str, str] = {}
        self._found: dict[str, dict[State, set[int]]] = {}
        for i, planned in enumerate(plan.operations):
            op, decision = planned.op, planned.decision
            if decision.how == How.ALIAS:
                for tensor, result in zip(op.inputs, op.outputs, strict=True):
                    self._aliases[result.name] = self._aliases.get(tensor.name, tensor.name)
                continue
            for k, (tensor, state) in enumerate(zip(op.outputs, decision.out, strict=True)):
                by_state = self._found.setdefault(self._name(tensor, state), {})
                for made in {state, planned.cut_again.get(k, state)}:
                    by_state.setdefault(made, set()).add(i)

    def _name(self, tensor: Any, state: State) -> str:
        name: str = tensor.name
        # A loop gives its handles out again, which does not make them. So each has its own name.
        return self._aliases.get(name, name) if state == HANDLE else self._names.of(name)

    def of(self, tensor: Any, want: State) -> set[int]:
        """Returns the operations that make a tensor in this state, or that it is made from."""
        name = self._name(tensor, want)
        by_state = self._found.get(name, {})
        if want in by_state and not (want == REPLICATED and name in self._known):
            return by_state[want]
        if name in self._known:
            return set()
        return by_state.get(REPLICATED) or self.of_any_state(tensor)

    def of_any_state(self, tensor: Any) -> set[int]:
        """Returns all operations that make a tensor."""
        by_state = self._found.get(self._names.of(tensor.name), {})
        return set().union(*by_state.values())


def _needed(plan: Plan, makers: _Makers, first: Collection[int]) -> set[int]:
    """Returns the numbers of the operations that the outputs of a plan need.

    Args:
      first: numbers of operations that are needed in any case.
    """
    ends = zip(plan.graph.outputs, plan.outs, strict=True)
    todo = set(first).union(*(makers.of(t, want) for t, want in ends))
    found: set[int] = set()
    while todo:
        number = todo.pop()
        found.add(number)
        op, decision = plan.operations[number].op, plan.operations[number].decision
        if decision.how == How.ALIAS:  # its outputs have the names of its inputs
            continue
        for k, (tensor, want) in enumerate(zip(op.inputs, decision.want, strict=True)):
            if decision.needs(k):
                todo |= makers.of(tensor, want) - found
    return found
