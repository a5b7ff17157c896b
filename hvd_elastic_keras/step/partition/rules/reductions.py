"""Sums, means, extremes and norms over some axes.

The second section has sums of products: matrix products, einsum, convolutions and their gradients.
"""

from __future__ import annotations

import numpy as np

from hvd_elastic_keras.step.partition.rules.dimensions import is_rows
from hvd_elastic_keras.step.partition.rules.states import (
    CONJUNCT,
    PARTIAL,
    REPLICATED,
    Decision,
    How,
    Rule,
    State,
    View,
    is_one,
    is_sharded,
    known,
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
        return v.only(0, PARTIAL, how=How.MEAN)
    if v.kind == "All":
        return v.only(0, CONJUNCT)
    if v.kind in EXTREMES:
        return v.only(0, REPLICATED, how=How.EXTREME)
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


def contraction(v: View, labels: list[str], out: str) -> Decision:
    """A sum of products over the labels that are not in `out`; linear in each operand."""
    if not v.has_rows:
        if sum(s == PARTIAL for s in v.ins) == 1:
            return v.only(v.ins.index(PARTIAL), PARTIAL)
        return v.replicated()
    of_rows = [n[s.at_axis] for n, s in zip(labels, v.ins, strict=True) if is_sharded(s)]
    label = of_rows[0]
    if any(names.count(label) > 1 for names in (*labels, out)):
        return v.replicated("a diagonal of rows")
    want: list[State] = []
    for names, dims in zip(labels, v.idims, strict=True):
        if label not in names:
            want.append(REPLICATED)
        elif is_rows(known(dims)[names.index(label)]):
            want.append(sharded(names.index(label)))
        else:
            return v.replicated("it is unknown whether both have rows")
    why = "rows meet rows" if len(set(of_rows)) > 1 else ""
    return v.run(*want, out=sharded(out.index(label)) if label in out else PARTIAL, whole=why)


def matrix_product(v: View) -> Decision:
    """`MatMul` and `BatchMatMul`, whose leading axes are broadcast."""
    plain = v.kind == "MatMul"
    names = ("transpose_a", "transpose_b") if plain else ("adj_x", "adj_y")
    leading = "abcdefgh"[: len(known(v.odims[0])) - 2]
    labels = []
    for i, pairs in enumerate((("ik", "ki"), ("kj", "jk"))):
        mine = leading[len(leading) - (v.rank(i) - 2) :]
        # An axis of size 1 that is broadcast has a label of its own.
        mine = "".join(
            label.upper() if is_one(v.idims[i], axis) else label for axis, label in enumerate(mine)
        )
        labels.append(mine + pairs[bool(v.attr(names[i]))])
    return contraction(v, labels, leading + "ij")


def einsum(v: View) -> Decision:
    """`Einsum`: up to two operands, by their labels."""
    left, out = v.attr("equation").decode().split("->")
    if "." in left:
        return v.replicated("an einsum with ...")
    return contraction(v, left.split(","), out)


def convolution(v: View) -> Decision:
    """A convolution of each row with the same filters; linear in images and in filters."""
    images, filters = v.ins
    if images.axis == 0:
        return v.run(images, REPLICATED, out=images)
    if sum(s == PARTIAL for s in v.ins) == 1 and not is_sharded(filters):
        return v.only(v.ins.index(PARTIAL), PARTIAL)
    return v.replicated("along the rows")


def gradient_of_images(v: View) -> Decision:
    """`Conv2DBackpropInput(sizes, filters, gradient)`."""
    gradient = v.ins[2]
    if gradient.axis == 0:
        return v.only(2, gradient, local_size=(0, 0))
    if gradient == PARTIAL:
        return v.only(2, PARTIAL)
    return v.replicated("along the rows")


def gradient_of_filters(v: View) -> Decision:
    """`Conv2DBackpropFilter(images, sizes, gradient)`: a sum over the rows."""
    images, _, gradient = v.ins
    if gradient.blocks is not None:
        return v.run(gradient, REPLICATED, gradient, out=PARTIAL)
    if sharded(0) in (images, gradient):
        if is_rows(known(v.idims[0])[0]) and is_rows(known(v.idims[2])[0]):
            return v.run(sharded(0), REPLICATED, sharded(0), out=PARTIAL)
        return v.replicated("it is unknown whether both have rows")
    if gradient == PARTIAL and images == REPLICATED:
        return v.only(2, PARTIAL)
    return v.replicated("along the rows")


RULES |= {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), matrix_product),
    "Einsum": einsum,
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), convolution),
    **dict.fromkeys(
        (
            "Conv2DBackpropInput",
            "Conv3DBackpropInputV2",
            "DepthwiseConv2dNativeBackpropInput",
        ),
        gradient_of_images,
    ),
    **dict.fromkeys(
        (
            "Conv2DBackpropFilter",
            "Conv3DBackpropFilterV2",
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        gradient_of_filters,
    ),
}
