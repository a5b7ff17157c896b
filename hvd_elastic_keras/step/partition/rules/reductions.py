"""Sums, means, extremes and norms over some axes."""

from __future__ import annotations

import numpy as np

from hvd_elastic_keras.step.partition.operations.states import (
    CONJUNCT,
    PARTIAL,
    REPLICATED,
    Decision,
    Rule,
    View,
    is_sharded,
    sharded,
)

EXTREMES = ("Max", "Min", "All", "Any")


def reduction(v: View) -> Decision:
    """A sum over rows is partial. A mean is a sum divided by the size of the whole."""
    state, axes = v.ins[0], v.const(1)
    if state == PARTIAL and v.kind in ("Sum", "Mean"):
        return v.only(0, PARTIAL)
    if not is_sharded(state):
        return v.replicated()
    if axes is None:
        return v.replicated("its axes are unknown")
    rank, axis = v.rank(0), state.at_axis
    reduced = {int(a) % rank for a in np.ravel(axes)}
    if axis not in reduced:
        lost = 0 if v.attr("keep_dims") else sum(a < axis for a in reduced)
        return v.only(0, sharded(axis - lost))
    if v.kind == "Sum":
        return v.only(0, PARTIAL)
    if v.kind == "Mean" and v.op.inputs[0].dtype.is_floating:
        return v.only(0, PARTIAL, how="mean")
    if v.kind == "All":
        return v.only(0, CONJUNCT)
    if v.kind in EXTREMES:
        return v.only(0, REPLICATED, how="extreme")
    return v.replicated("no part of it is known from some rows")


def sum_of_all_but_last(v: View) -> Decision:
    """`BiasAddGrad`."""
    if is_sharded(v.ins[0]):
        return v.run(v.ins[0], out=PARTIAL) if _is_summed(v) else v.replicated("along the rows")
    return v.run(PARTIAL, out=PARTIAL) if v.ins[0] == PARTIAL else v.replicated()


def _is_summed(v: View) -> bool:
    kept = v.rank(0) - 1 if v.attr("data_format") == b"NHWC" else 1
    return v.ins[0].axis != kept


def sum_of_squares(v: View) -> Decision:
    """`L2Loss`."""
    return v.run(v.ins[0], out=PARTIAL) if is_sharded(v.ins[0]) else v.replicated()


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Sum", "Mean", "Prod", *EXTREMES), reduction),
    "BiasAddGrad": sum_of_all_but_last,
    "L2Loss": sum_of_squares,
}
