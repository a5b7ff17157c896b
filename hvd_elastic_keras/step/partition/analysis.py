"""Decides what each operation of a step does to rows, and where a collective is needed.

The analysis is pure: nothing is run, and no value of a batch is read. The first walk over the graph
finds which partial sums are needed whole. A minimum cut then tells which tensors are cheapest to
reduce, and the next walk reduces these. If a walk finds further sums that are needed whole, cut and
walk are repeated, up to `MOST_WALKS` walks. (Adam uses a gradient g and (g - m)(1 - b1): reducing
one of them is enough.)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.step.partition.captured_step import CapturedStep, Leaf
from hvd_elastic_keras.step.partition.gradients import gradients_of
from hvd_elastic_keras.step.partition.late_sums import with_late_sums
from hvd_elastic_keras.step.partition.operations.dimensions import (
    OTHER_SIZES,
    Dims,
    Sizes,
    Values,
    static,
    tried,
    tried_up_to,
)
from hvd_elastic_keras.step.partition.operations.states import HANDLE, REPLICATED, State, sharded
from hvd_elastic_keras.step.partition.plan import Analysis, Plan
from hvd_elastic_keras.step.partition.region import Region
from hvd_elastic_keras.step.partition.walk import Key, Walk

MOST_WALKS = 4


def analysed(
    captured: CapturedStep, num_rows: int, *, whole: bool = False, rounds: bool = False
) -> Analysis:
    """Plans how several workers take a step.

    Args:
      num_rows: the largest number of rows of a batch. Bytes are compared for this number.
      whole: whether every worker gathers the batch and computes all of it. Such a plan also holds
        for batches of one row.
      rounds: whether gradients travel in 16 bits.

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
    if not rounds:
        return found
    return dataclasses.replace(found, rounded=gradients_of(captured, found.plan))


def _walked(
    captured: CapturedStep, num_rows: int, gathered: dict[int, str], *, whole: bool
) -> tuple[Plan, Walk]:
    early: set[Key] = set()
    sizes = Sizes()
    for _ in range(MOST_WALKS):
        walk = Walk(num_rows, early)
        plan = _planned(captured, walk, sizes, gathered, whole=whole)
        if not walk.flow.needed - early:
            break
        early = walk.flow.cut()
    return plan, walk


def _kind(leaf: Leaf) -> str:
    """Returns why the rows of a tensor may differ in form; empty if they do not."""
    if isinstance(leaf.spec, tf.RaggedTensorSpec):
        return "its tensor is ragged"
    return "its tensor is sparse" if isinstance(leaf.spec, tf.SparseTensorSpec) else ""


def _planned(
    captured: CapturedStep, walk: Walk, sizes: Sizes, gathered: dict[int, str], *, whole: bool
) -> Plan:
    """Plans the whole graph. Rows come in, and the results go out replicated."""
    others = iter(OTHER_SIZES)
    region = Region(walk, captured.graph, sizes)
    states: dict[str, State] = {}
    for i, leaf in enumerate(captured.leaves):
        for k, tensor in enumerate(leaf.placeholders):
            if i in gathered:
                if not whole:  # with `whole`, no tensor is taken for rows and cut
                    sizes.give(tensor, *_of_component(leaf, k))
                region.note_gathered(tensor, gathered[i])
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
    return region.planned(ins, levels, [REPLICATED] * len(captured.graph.outputs), "the logs")


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
