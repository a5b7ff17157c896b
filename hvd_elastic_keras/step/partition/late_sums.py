"""Moves sums for which no other collective waits to the last round.

These are above all the gradients. If they travelled with the small sums that a layer of batch norm
needs, the layer would wait for them in its backward pass.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

from hvd_elastic_keras.step.partition.graph_nodes import PYTHON_CALLS
from hvd_elastic_keras.step.partition.plan import Analysis, Plan, PlannedOperation
from hvd_elastic_keras.step.partition.plan_names import ALIAS, Names


def with_late_sums(analysis: Analysis) -> Analysis:
    """Moves as many sums as possible to the last round.

    The result has the same rounds of collectives, or fewer.
    """
    plan, found = analysis.plan, analysis.collectives
    last = max((c.level for c in found), default=0)
    names = Names(plan)
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


def _before_collectives(plan: Plan, names: Names, exchanged: set[str]) -> set[str]:
    """Returns the names of tensors from which exchanged tensors follow."""
    before: set[str] = set()
    for planned in reversed(plan.operations):
        if planned.decision.how == ALIAS:
            continue
        stays = planned.bodies or planned.op.type in PYTHON_CALLS  # Python code keeps its order
        if stays or names.results(planned) & exchanged or names.results(planned) & before:
            before |= names.inputs(planned)
    return before


def _raised(plan: Plan, names: Names, late: set[str], last: int) -> Iterator[PlannedOperation]:
    """Yields the operations. An operation that uses a late sum moves after the last round."""
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
