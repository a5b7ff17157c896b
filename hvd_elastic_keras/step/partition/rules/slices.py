"""Parts of a tensor and their gradients, padding, and gathering by numbers."""

from __future__ import annotations

import numpy as np

from hvd_elastic_keras.step.partition.rules.dimensions import dim_at, is_constant, is_rows
from hvd_elastic_keras.step.partition.rules.states import (
    HANDLE,
    PARTIAL,
    REPLICATED,
    Decision,
    Rule,
    View,
    is_sharded,
    known,
    names,
    sharded,
)

LINEAR_SCATTERS = names("TensorScatterAdd TensorScatterSub TensorScatterUpdate")
"""Linear in the tensor and the data together."""
SCATTERS = LINEAR_SCATTERS | names("TensorScatterMax TensorScatterMin")


def strided_slice(v: View) -> Decision:
    """The rows stay if their axis is taken in full."""
    state = v.ins[0]
    if state == PARTIAL:
        return v.only(0, PARTIAL)
    if is_sharded(state):
        out = _kept_axes(v, v.rank(0)).get(state.at_axis)
        if out is not None:
            return v.only(0, sharded(out))
    return v.replicated("rows are picked")


def strided_slice_grad(v: View) -> Decision:
    """Puts the gradient of a part into zeros of the whole."""
    state = v.ins[4]
    if state == PARTIAL:
        return v.only(4, PARTIAL)
    if is_sharded(state):
        for axis, out in _kept_axes(v, len(known(v.odims[0]))).items():
            if out == state.at_axis and is_rows(known(v.odims[0])[axis]):
                return v.only(4, sharded(axis), local_size=(0, axis))
    return v.replicated("rows are picked")


def _kept_axes(v: View, rank: int) -> dict[int, int]:
    """Returns the axes of the input that are taken in full, and their places in the output."""
    strides = v.const(3)
    if strides is None:
        return {}
    mask = {n: v.attr(f"{n}_mask") for n in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def has(name: str, i: int) -> bool:
        return bool(mask[name] >> i & 1)

    entries = list(range(len(strides)))
    explicit = sum(not has("new_axis", i) and not has("ellipsis", i) for i in entries)
    behind_all = [] if mask["ellipsis"] else [None]
    kept: dict[int, int] = {}
    axis = out = 0
    for i in [*entries, *behind_all]:
        if i is None or has("ellipsis", i):
            for _ in range(rank - explicit):
                kept[axis] = out
                axis, out = axis + 1, out + 1
        elif has("new_axis", i):
            out += 1
        elif has("shrink_axis", i):
            axis += 1
        else:
            if has("begin", i) and has("end", i) and strides[i] == 1:
                kept[axis] = out
            axis, out = axis + 1, out + 1
    return kept


def slice_(v: View) -> Decision:
    """`Slice`: a part of a given size from `begin` on."""
    state = v.ins[0]
    if state == PARTIAL:
        return v.only(0, PARTIAL)
    if is_sharded(state):
        axis, begin = state.at_axis, v.const(1)
        same = known(v.odims[0])[axis] == known(v.idims[0])[axis] is not None
        if begin is not None and begin[axis] == 0 and same:
            return v.only(0, state, local_size=(2, axis))
    return v.replicated("rows are picked")


def pad(v: View) -> Decision:
    """Adds zeros or other values, before and after, along some axes."""
    state, paddings = v.ins[0], v.const(1)
    if state == PARTIAL and v.kind in ("Pad", "MirrorPad", "MirrorPadGrad"):
        return v.only(0, PARTIAL)
    if is_sharded(state) and paddings is not None and not np.any(paddings[state.at_axis]):
        return v.only(0, state)
    return v.replicated("rows are padded")


def gather(v: View) -> Decision:
    """`GatherV2`: slices by numbers. The numbers may have rows of their own."""
    params, indices = v.ins[:2]
    axis_value = v.const(2)
    if axis_value is None:
        return v.replicated("its axis is unknown")
    rank, axis, batch_dims = v.rank(0), int(axis_value), v.attr("batch_dims")
    axis %= rank
    if params == PARTIAL and not is_sharded(indices):
        return v.only(0, PARTIAL)
    if batch_dims:
        rows = [s.axis for s in (params, indices) if is_sharded(s)]
        both = is_rows(known(v.idims[0])[0]) and is_rows(known(v.idims[1])[0])
        if rows and set(rows) == {0} and both and batch_dims % rank > 0 and axis > 0:
            return v.run(sharded(0), sharded(0), REPLICATED, out=sharded(0))
        return v.replicated("rows of one by rows of the other")
    if is_sharded(indices):
        why = "rows by number" if is_sharded(params) else ""
        return v.run(
            REPLICATED, indices, REPLICATED, out=sharded(axis + indices.at_axis), whole=why
        )
    if is_sharded(params) and params.axis != axis:
        moved = v.rank(1) - 1 if axis < params.at_axis else 0
        return v.only(0, sharded(params.at_axis + moved))
    return v.replicated("rows by number")


def gather_of_variable(v: View) -> Decision:
    """`ResourceGather`: rows of a table by numbers."""
    if is_sharded(v.ins[1]) and v.attr("batch_dims") == 0:
        return v.run(HANDLE, v.ins[1], out=v.ins[1])
    return v.replicated()


def gather_nd(v: View) -> Decision:
    """Elements or slices by tuples of numbers along the last axis."""
    params, indices = v.ins
    if params == HANDLE:
        kept = is_sharded(indices) and indices.at_axis < v.rank(1) - 1
        return v.run(HANDLE, indices, out=indices) if kept else v.replicated("rows by number")
    if params == PARTIAL and not is_sharded(indices):
        return v.only(0, PARTIAL)
    if is_sharded(indices) and indices.at_axis < v.rank(1) - 1:
        why = "rows by number" if is_sharded(params) else ""
        return v.run(REPLICATED, indices, out=indices, whole=why)
    return v.replicated("rows by number")


def segment_sum(v: View) -> Decision:
    """`UnsortedSegmentSum(data, numbers, count)`: adds data into a tensor that all workers have."""
    return _added(v, data=0, numbers=1, inner=0)


def scatter(v: View) -> Decision:
    """`ScatterNd(numbers, data, shape)`."""
    if v.op.inputs[1].dtype.is_bool:
        return v.replicated("truth values at one place are joined by or")
    return _added(v, data=1, numbers=0, inner=1)


def scattered_into(v: View) -> Decision:
    """`TensorScatterUpdate(tensor, numbers, data)` and the like."""
    tensor, numbers, data = v.ins
    if not v.has_rows:
        if PARTIAL in (tensor, data) and v.kind in LINEAR_SCATTERS and numbers == REPLICATED:
            return v.run(PARTIAL, REPLICATED, PARTIAL, out=PARTIAL)
        return v.replicated()
    depth = dim_at(v.idims[1], v.rank(1) - 1)
    if is_sharded(numbers) or depth is None or not is_constant(depth):
        return v.replicated("scatters rows")
    # The data have the axes of the numbers but the last, then the axes of the slices they name.
    shift = v.rank(1) - 1 - depth[0]
    axis = tensor.at_axis if is_sharded(tensor) else data.at_axis - shift
    rows = [is_rows(dim_at(v.idims[0], axis)), is_rows(dim_at(v.idims[2], axis + shift))]
    if axis < depth[0] or not all(rows):
        return v.replicated("scatters rows")
    if is_sharded(data) and data.at_axis != axis + shift:
        return v.replicated("rows along different axes")
    return v.run(sharded(axis), REPLICATED, sharded(axis + shift), out=sharded(axis))


def counts(v: View) -> Decision:
    """`DenseBincount(numbers, size, weights)`: of all rows together, or of each row of a matrix."""
    numbers, _, weights = v.ins
    if not v.has_rows or v.attr("binary_output"):
        return v.replicated("whether a number is there at all")
    if not is_rows(dim_at(v.idims[0], 0)) or {numbers, weights} - {sharded(0), REPLICATED}:
        return v.replicated("it is unknown whether both have rows")
    first = dim_at(v.idims[2], 0)
    if is_rows(first):
        weights = sharded(0)
    elif first is None or set(first) != {0}:  # without weights, their size is 0
        return v.replicated("it is unknown whether both have rows")
    out = PARTIAL if v.rank(0) == 1 else sharded(0)
    return v.run(sharded(0), REPLICATED, weights, out=out)


def _added(v: View, data: int, numbers: int, inner: int) -> Decision:
    """Data are added up by numbers. The last `inner` axes of the numbers belong to one element."""
    shards = {v.ins[i] for i in (data, numbers) if is_sharded(v.ins[i])}
    want = [REPLICATED] * len(v.ins)
    if len(shards) == 1:
        state = shards.pop()
        rows = [is_rows(dim_at(v.idims[i], state.at_axis)) for i in (data, numbers)]
        if all(rows) and state.at_axis < v.rank(numbers) - inner:
            want[data] = want[numbers] = state
            return v.run(*want, out=PARTIAL)
        if v.ins[data] == state and not is_sharded(v.ins[numbers]):
            return v.replicated("along the rows")
    if v.ins[data] == PARTIAL:
        return v.only(data, PARTIAL)
    return v.replicated("scatters rows")


RULES: dict[str, Rule] = {
    "StridedSlice": strided_slice,
    "StridedSliceGrad": strided_slice_grad,
    "Slice": slice_,
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad", "MirrorPadGrad"), pad),
    "GatherV2": gather,
    "ResourceGather": gather_of_variable,
    "GatherNd": gather_nd,
    "UnsortedSegmentSum": segment_sum,
    "ScatterNd": scatter,
    "ResourceGatherNd": gather_nd,
    "DenseBincount": counts,
    **dict.fromkeys(SCATTERS, scattered_into),
}
