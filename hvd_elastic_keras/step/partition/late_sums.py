"""Sums for which no other collective waits travel with the last ones.

These are the gradients, above all: a layer of batch norm would wait for them in its backward pass,
if they went with the small sums that it needs.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from hvd_elastic_keras.step.partition.graph_nodes import PYTHON_CALLS
from hvd_elastic_keras.step.partition.operations.states import HANDLE
from hvd_elastic_keras.step.partition.plan import Analysis, Plan, PlannedOperation

ALIAS = "alias"


def with_late_sums(analysis: Analysis) -> Analysis:
    """The same rounds of collectives, or fewer, with as much as possible in the last one."""
    plan, found = analysis.plan, analysis.collectives
    last = max((c.level for c in found), default=0)
    names = _Names(plan)
    before = _before_collectives(plan, names, {names.of(c.tensor) for c in found})
    late = {
        tensor.name
        for level, tensors in plan.reductions.items()
        for tensor in tensors
        if level < last and names.of(tensor.name) not in before
    }
    if not late:
        return analysis
    operations = _raised(plan, names, {names.of(name) for name in late}, last)
    moved = (dataclasses.replace(c, level=last) if c.tensor in late else c for c in found)
    return dataclasses.replace(
        analysis,
        plan=dataclasses.replace(
            plan,
            operations=tuple(sorted(operations, key=lambda p: p.level)),
            reductions=_moved(plan, late, last),
        ),
        collectives=tuple(sorted(moved, key=lambda c: c.level)),
    )


class _Names:
    """Names of tensors, and of variables by their handles; one name for what is the same."""

    def __init__(self, plan: Plan) -> None:
        self._first: dict[str, str] = {}
        for planned in plan.operations:
            op, decision = planned.op, planned.decision
            if decision.how == ALIAS or HANDLE in decision.out:
                for tensor, result in zip(op.inputs, op.outputs, strict=True):
                    self._first[result.name] = self.of(tensor.name)

    def of(self, name: str) -> str:
        return self._first.get(name, name)

    def inputs(self, planned: PlannedOperation) -> set[str]:
        return {self.of(t.name) for t in planned.op.inputs}

    def results(self, planned: PlannedOperation) -> set[str]:
        """Of its outputs, and of the variables that it may assign to."""
        op, want = planned.op, planned.decision.want
        assigned = op.inputs if op.type not in ("ReadVariableOp", "VariableShape") else ()
        handles = [t for t, state in zip(assigned, want, strict=False) if state == HANDLE]
        return {self.of(t.name) for t in (*op.outputs, *handles)}


def _before_collectives(plan: Plan, names: _Names, exchanged: set[str]) -> set[str]:
    """Names from which something follows that workers exchange."""
    before: set[str] = set()
    for planned in reversed(plan.operations):
        if planned.decision.how == ALIAS:
            continue
        stays = planned.bodies or planned.op.type in PYTHON_CALLS  # Python code keeps its order
        if stays or names.results(planned) & exchanged or names.results(planned) & before:
            before |= names.inputs(planned)
    return before


def _raised(plan: Plan, names: _Names, late: set[str], last: int) -> Iterator[PlannedOperation]:
    """The operations, of which those come after the last round that use a late sum."""
    after = set(late)
    for planned in plan.operations:
        if planned.decision.how == ALIAS or not after & names.inputs(planned):
            yield planned
        else:
            after |= names.results(planned)
            yield dataclasses.replace(planned, level=last)


def _moved(plan: Plan, late: set[str], last: int) -> dict[int, tuple[Any, ...]]:
    reductions: dict[int, list[Any]] = collections.defaultdict(list)
    for level, tensors in plan.reductions.items():
        for tensor in tensors:
            reductions[last if tensor.name in late else level].append(tensor)
    return {level: tuple(tensors) for level, tensors in reductions.items()}
