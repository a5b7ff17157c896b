"""Decides what each operation of a step does to rows, and where a collective is needed.

The analysis is pure: nothing is run, and no value of a batch is read. The first walk over the graph
finds which partial sums are needed whole. A minimum cut then tells which tensors are cheapest to
reduce, and the next walk reduces these. If a walk finds further sums that are needed whole, cut and
walk are repeated, up to `MOST_WALKS` walks. (Adam uses a gradient g and (g - m)(1 - b1): reducing
one of them is enough.) If a sum to reduce is a table to which rows are added, and the rows are
fewer bytes, then the rows are gathered.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.keras_internals.traced_graphs import PYTHON_CALLS
from hvd_elastic_keras.step.partition.captured_step import CapturedStep, Leaf
from hvd_elastic_keras.step.partition.gradients import gradients_of
from hvd_elastic_keras.step.partition.plan import Analysis, Names, Plan, PlannedOperation
from hvd_elastic_keras.step.partition.planning.liveness import without_unused_copies
from hvd_elastic_keras.step.partition.planning.region import Region
from hvd_elastic_keras.step.partition.planning.walk import Key, Walk
from hvd_elastic_keras.step.partition.rules.dimensions import (
    OTHER_SIZES,
    Dims,
    dim_at,
    static,
    tried,
    tried_up_to,
)
from hvd_elastic_keras.step.partition.rules.sizes import Sizes, Values
from hvd_elastic_keras.step.partition.rules.states import HANDLE, REPLICATED, How, State, sharded

MOST_WALKS = 4


def analysed(
    captured: CapturedStep, num_rows: int, *, whole: bool = False, half_gradients: bool = False
) -> Analysis:
    """Plans how several workers take a step.

    Args:
      num_rows: the largest number of rows of a batch. Bytes are compared for this number.
      whole: whether every worker gathers the batch and computes all of it. Such a plan also holds
        for batches of one row.
      half_gradients: whether gradients travel in 16 bits.

    Raises:
      NotPartitionedError: the step has operations that cannot be the same on all workers.
      ConfigurationError: the step draws random numbers that no other worker can repeat.
    """
    gathered = {
        i: "everybody computes all" if whole else _kind(leaf)
        for i, leaf in enumerate(captured.leaves)
        if leaf.per_row and (whole or _kind(leaf))
    }
    with tried_up_to(num_rows):
        plan, walk = _walked(captured, num_rows, gathered, whole=whole)
        most_rows = None if whole else tried()[-1]
    collectives = sorted(walk.collectives, key=lambda c: c.level)
    first = frozenset(gathered)
    found = Analysis(plan, most_rows, first, tuple(collectives), tuple(walk.whole))
    found = with_late_sums(found)
    found = dataclasses.replace(found, plan=without_unused_copies(found.plan))
    if not half_gradients:
        return found
    return dataclasses.replace(found, rounded=gradients_of(captured, found.plan))


def planned_rows(captured: CapturedStep, num_rows: int) -> tuple[Plan, bool]:
    """Plans a graph whose results stay as they are: rows stay rows.

    Returns:
      The plan. Whether each result has as many rows as the batch, and no worker needs anything from
      others.
    """
    walk, sizes = Walk(num_rows, set()), Sizes()
    with tried_up_to(num_rows):
        plan = _planned(captured, walk, sizes, {}, whole=False, outs=None)
        dims = [sizes.dims.get(t.name) for t in captured.graph.outputs]
        one_each = all(dim_at(found, 0) == tried() for found in dims)
    return plan, one_each and not (walk.collectives or walk.whole)


def _walked(
    captured: CapturedStep, num_rows: int, gathered: dict[int, str], *, whole: bool
) -> tuple[Plan, Walk]:
    early: set[Key] = set()
    by_rows: set[Key] = set()
    sizes = Sizes()
    for _ in range(MOST_WALKS):
        walk = Walk(num_rows, early, by_rows)
        outs = [REPLICATED] * len(captured.graph.outputs)
        plan = _planned(captured, walk, sizes, gathered, whole=whole, outs=outs)
        if not walk.flow.needed - early:
            break
        early = walk.flow.cut()
        by_rows |= walk.flow.fewer_as_rows(early)
    return plan, walk


def _kind(leaf: Leaf) -> str:
    """Returns why the rows of a tensor may differ in form; empty if they do not."""
    if isinstance(leaf.spec, tf.RaggedTensorSpec):
        return "its tensor is ragged"
    return "its tensor is sparse" if isinstance(leaf.spec, tf.SparseTensorSpec) else ""


def _planned(
    captured: CapturedStep,
    walk: Walk,
    sizes: Sizes,
    gathered: dict[int, str],
    *,
    whole: bool,
    outs: Sequence[State] | None,
) -> Plan:
    """Plans the whole graph. Rows come in; `outs` is as in `Region.planned`."""
    others = iter(OTHER_SIZES)
    region = Region(walk, captured.graph, sizes)
    states: dict[str, State] = {}
    for i, leaf in enumerate(captured.leaves):
        for k, tensor in enumerate(leaf.placeholders):
            if i in gathered:
                if not whole:  # with `whole`, no tensor is taken for rows and cut
                    sizes.give(tensor, *_of_component(leaf, k))
                why = f"all else, since {gathered[i]}"
                region.tensors.note_collective("allgather", tensor, why, 1)
            elif leaf.per_row:
                states[tensor.name] = sharded(0)
                sizes.give(tensor, _of_batch(tensor, leaf.per_row, others))
    for tensor in captured.graph.inputs:
        if tensor.name in captured.variables:
            states[tensor.name] = HANDLE
            sizes.give(tensor, static(captured.variables[tensor.name].shape))
        elif tensor.name not in sizes.dims:
            sizes.give(tensor, static(tensor.shape))
    first = {p.name for i in gathered for p in captured.leaves[i].placeholders}
    inputs = captured.graph.inputs
    levels = [int(t.name in first) for t in inputs]
    ins = [states.get(t.name, REPLICATED) for t in inputs]
    return region.planned(ins, levels, outs, "the logs")


def _of_batch(tensor: Any, per_row: int, others: Any) -> Dims:
    """Returns the rows, and stand-ins for other sizes that are unknown when a step is traced."""
    known = static(tensor.shape)
    if known is None:
        return None
    rows = tuple(n * per_row for n in tried())
    return (rows, *(next(others, None) if d is None else d for d in known[1:]))


def _of_component(leaf: Leaf, k: int) -> tuple[Dims, Values | None]:
    """Returns what is known of a component of a ragged or sparse tensor of all rows."""
    known = static(leaf.placeholders[k].shape)
    if isinstance(leaf.spec, tf.RaggedTensorSpec) and k == 1:  # where the rows begin and end
        return (tuple(n + 1 for n in tried()),), None
    if isinstance(leaf.spec, tf.SparseTensorSpec) and k == 2 and None not in leaf.spec.shape[1:]:
        return known, tuple(np.array([n, *leaf.spec.shape[1:]]) for n in tried())
    return known, None


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
        if planned.decision.how == How.ALIAS:
            continue
        stays = planned.bodies or planned.op.type in PYTHON_CALLS  # Python code keeps its order
        if stays or names.results(planned) & exchanged or names.results(planned) & before:
            before |= names.inputs(planned)
    return before


def _raised(plan: Plan, names: Names, late: set[str], last: int) -> Iterator[PlannedOperation]:
    """Yields the operations. An operation that uses a late sum moves after the last round."""
    after = set(late)
    for planned in plan.operations:
        if planned.decision.how == How.ALIAS or not after & names.inputs(planned):
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
