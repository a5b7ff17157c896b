"""Shapes, and operations that give a tensor another shape or repeat it.

The last section has images cut into small images, as TensorFlow computes dilated convolutions:
filters with holes. `SpaceToBatchND` makes k small images of each image. The first small images of
all images come first, so rows lie within blocks of the first axis. Right after a dilated
convolution, TensorFlow puts the small images together again.
"""

from __future__ import annotations

import math

from hvd_elastic_keras.step.partition.rules.dimensions import Dim, is_constant, rows_axes
from hvd_elastic_keras.step.partition.rules.states import (
    PARTIAL,
    REPLICATED,
    Decision,
    How,
    Rule,
    View,
    in_blocks,
    is_one,
    is_sharded,
    known,
    sharded,
)


def shape_of(v: View) -> Decision:
    """Sizes of the whole tensor, from sizes of a worker's rows and the size of the batch."""
    return Decision(v.ins, (REPLICATED,) * len(v.op.outputs), how=How.SHAPE, forms=v.forms)


def reshape(v: View) -> Decision:
    """Rows stay rows if an axis still holds rows, with as many elements before it as before.

    The number of these elements is the product of the sizes of the axes before it.
    """
    state = v.ins[0]
    if state == PARTIAL:
        return v.only(0, PARTIAL)
    if state.blocks is not None and known(v.odims[0])[:1] == known(v.idims[0])[:1]:
        return v.only(0, state, local_size=(1, 0))
    if not is_sharded(state):
        return v.replicated()
    before = _product(known(v.idims[0])[: state.at_axis])
    out = known(v.odims[0])
    for axis in rows_axes(out):
        # Then each row has the same number of elements on both sides, since the totals are equal.
        if before is not None and _product(out[:axis]) == before:
            return v.only(0, sharded(axis), local_size=(1, axis))
    return v.replicated("rows are mixed with an axis before them")


def _product(dims: tuple[Dim, ...]) -> int | None:
    """Returns the product of sizes; None if one depends on the rows or is unknown."""
    if not all(map(is_constant, dims)):
        return None
    return math.prod(dim[0] for dim in dims if dim is not None)


def transpose(v: View) -> Decision:
    """The rows go where the permutation puts their axis."""
    state, permutation = v.ins[0], v.const(1)
    if state == PARTIAL:
        return v.only(0, PARTIAL)
    if is_sharded(state) and permutation is not None:
        return v.only(0, sharded([int(p) for p in permutation].index(state.at_axis)))
    return v.replicated("its permutation is unknown")


def expand_dims(v: View) -> Decision:
    """Adds an axis of size 1."""
    state, axis = v.ins[0], v.const(1)
    if state == PARTIAL:
        return v.only(0, PARTIAL)
    if axis is not None and state.axis is not None:
        new = int(axis.ravel()[0]) % (v.rank(0) + 1)
        if state.blocks is not None:
            return v.only(0, state) if new else v.replicated("along the rows")
        return v.only(0, sharded(state.at_axis + (new <= state.at_axis)))
    return v.replicated("its axis is unknown")


def squeeze(v: View) -> Decision:
    """Removes axes of size 1. The axis of the rows may be one of them."""
    state = v.ins[0]
    if state == PARTIAL:
        return v.only(0, PARTIAL)
    if state.axis is None:
        return v.replicated()
    axes = {a % v.rank(0) for a in v.attr("squeeze_dims")}
    if not axes or state.at_axis in axes:
        return v.replicated("the rows might go")
    if state.blocks is not None:
        return v.only(0, state)
    return v.only(0, sharded(state.at_axis - sum(a < state.at_axis for a in axes)))


def fill(v: View) -> Decision:
    """Spreads a scalar over a new shape. Each worker makes its rows."""
    if v.ins[1] == PARTIAL:
        return v.only(1, PARTIAL)
    axes = rows_axes(v.odims[0])
    if len(axes) == 1:
        return v.run(REPLICATED, REPLICATED, out=sharded(axes[0]), local_size=(0, axes[0]))
    return v.replicated()


def broadcast_to(v: View) -> Decision:
    """Repeats a tensor along axes where it has size 1, or along new leading axes."""
    state = v.ins[0]
    if state == PARTIAL:
        return v.only(0, PARTIAL)
    out = known(v.odims[0])
    shift = len(out) - v.rank(0)
    if is_sharded(state):
        axis = state.at_axis + shift
        if out[axis] != known(v.idims[0])[state.at_axis]:
            return v.replicated("rows are repeated")
        return v.only(0, sharded(axis), local_size=(1, axis))
    axes = rows_axes(out)
    if len(axes) == 1 and is_one(v.idims[0], axes[0] - shift):
        return v.run(REPLICATED, REPLICATED, out=sharded(axes[0]), local_size=(1, axes[0]))
    return v.replicated()


def tile(v: View) -> Decision:
    """Repeats a tensor along axes other than the axis of the rows."""
    state, multiples = v.ins[0], v.const(1)
    if state == PARTIAL:
        return v.only(0, PARTIAL)
    if not is_sharded(state):
        return v.replicated()
    if multiples is None:
        same = known(v.odims[0])[state.at_axis] == known(v.idims[0])[state.at_axis]
        return v.only(0, state) if same else v.replicated("rows are repeated")
    if multiples[state.at_axis] != 1:
        return v.replicated("rows are repeated")
    return v.only(0, state)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Shape", "ShapeN", "Size", "Rank"), shape_of),
    "Reshape": reshape,
    "Transpose": transpose,
    "ExpandDims": expand_dims,
    "Squeeze": squeeze,
    "Fill": fill,
    "BroadcastTo": broadcast_to,
    "Tile": tile,
}


def into_blocks(v: View) -> Decision:
    """`SpaceToBatchND(images, block_shape, paddings)`: linear; cuts each image by itself."""
    number = _number_of_blocks(v)
    if v.ins[0] == PARTIAL:
        return v.only(0, PARTIAL)
    if v.ins[0] == sharded(0) and number is not None:
        return v.only(0, in_blocks(number))
    return v.replicated("along the rows")


def out_of_blocks(v: View) -> Decision:
    """`BatchToSpaceND(images, block_shape, crops)`."""
    number = _number_of_blocks(v)
    if v.ins[0] == PARTIAL:
        return v.only(0, PARTIAL)
    if number is not None and v.ins[0] == in_blocks(number):
        return v.only(0, sharded(0))
    return v.replicated("along the rows")


def _number_of_blocks(v: View) -> int | None:
    shape = v.const(1)
    return None if shape is None else int(shape.prod())


RULES |= {"SpaceToBatchND": into_blocks, "BatchToSpaceND": out_of_blocks}
