"""Decides for each operation of a step what it does to rows, and where a collective has to stand.

Pure: nothing is run, and no value of a batch is looked at. The graph is walked twice. The first
walk finds which partial sums somebody needs whole; a minimum cut then says which tensors are the
cheapest to reduce; the second walk reduces these. (Adam uses a gradient g and (g - m)(1 - b1):
one of them is enough.)
"""

from __future__ import annotations

from typing import Any

from hvd_elastic_keras.step.partition.captured_step import (
    CapturedStep,
)
from hvd_elastic_keras.step.partition.late_sums import with_late_sums
from hvd_elastic_keras.step.partition.operations.dimensions import (
    OTHER_SIZES,
    ROWS,
    Dims,
    Sizes,
    static,
)
from hvd_elastic_keras.step.partition.operations.states import (
    HANDLE,
    REPLICATED,
    sharded,
)
from hvd_elastic_keras.step.partition.plan import Analysis, Plan
from hvd_elastic_keras.step.partition.region import Region
from hvd_elastic_keras.step.partition.walk import Key, Walk

MOST_WALKS = 4


def analysed(captured: CapturedStep, num_rows: int) -> Analysis:
    """How several workers take a step.

    Args:
      num_rows: of a batch; bytes are compared for so many.

    Raises:
      NotPartitionedError: the step has operations that cannot be the same on all workers.
    """
    early: set[Key] = set()
    sizes = Sizes()
    for _ in range(MOST_WALKS):
        walk = Walk(num_rows, early)
        plan = _planned(captured, walk, sizes)
        if not walk.flow.needed - early:
            break
        early = walk.flow.cut()
    collectives = sorted(walk.collectives, key=lambda c: c.level)
    return with_late_sums(Analysis(plan, tuple(collectives), tuple(walk.whole)))


def _planned(captured: CapturedStep, walk: Walk, sizes: Sizes) -> Plan:
    """The whole graph: rows come in, and the results go out replicated."""
    of_batch = {t.name for t in captured.batch}
    others = iter(OTHER_SIZES)
    states = []
    for tensor in captured.graph.inputs:
        if tensor.name in of_batch:
            states.append(sharded(0))
            sizes.give(tensor, _of_batch(tensor, others))
        elif tensor.name in captured.variables:
            states.append(HANDLE)
            sizes.give(tensor, static(captured.variables[tensor.name].shape))
        else:
            states.append(REPLICATED)
            sizes.give(tensor, static(tensor.shape))
    levels = [0] * len(states)
    outs = [REPLICATED] * len(captured.graph.outputs)
    return Region(walk, captured.graph, sizes).planned(states, levels, outs, "the logs")


def _of_batch(tensor: Any, others: Any) -> Dims:
    """The rows, and stand-ins for whatever else is not known when the step is traced."""
    known = static(tensor.shape)
    if known is None:
        return None
    return (ROWS, *(next(others, None) if d is None else d for d in known[1:]))
