"""Several tensors joined to one, and one cut into several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hvd_elastic_keras.step.partition.rules.states import (
    PARTIAL,
    REPLICATED,
    Decision,
    Rule,
    State,
    View,
    as_rows,
    is_sharded,
    known,
    sharded,
)


def _joined(v: View, parts: Sequence[int], out_axis: Callable[[int], int | None]) -> Decision:
    """Joins the inputs `parts`, which have one form.

    `out_axis` returns where an axis of the parts lies in the output, or None if rows cannot stay.
    """
    states = {v.ins[i] for i in parts}
    shards = {s for s in states if is_sharded(s)}
    if not shards:
        if PARTIAL not in states:
            return v.replicated()
        want = tuple(PARTIAL if i in parts else REPLICATED for i in range(len(v.ins)))
        return v.run(*want, out=PARTIAL)
    state = shards.pop()
    out = out_axis(state.at_axis)
    if shards or out is None:
        return v.replicated("rows along different axes" if shards else "rows are joined with rows")
    want_of: dict[int, State] = {}
    for i in parts:
        wanted = as_rows(v.ins[i], v.idims[i], state.at_axis)
        if wanted != state:
            return v.replicated("it is unknown whether all parts have rows")
        want_of[i] = wanted
    return v.run(*(want_of.get(i, REPLICATED) for i in range(len(v.ins))), out=sharded(out))


def concat(v: View) -> Decision:
    """Joins tensors along one of their axes, which the last input names."""
    last = len(v.ins) - 1
    axis = v.const(last)
    if axis is None:
        return v.replicated("its axis is unknown")
    along = int(axis) % v.rank(0)
    return _joined(v, range(last), lambda a: None if a == along else a)


def pack(v: View) -> Decision:
    """Joins tensors along a new axis."""
    along = v.attr("axis") % (v.rank(0) + 1)
    return _joined(v, range(len(v.ins)), lambda a: a + (along <= a))


def _along(v: View, data: int, axis: int | None, lost: bool = False) -> Decision:
    """The operation changes `data` along `axis` only. If `lost`, the output lacks this axis."""
    state = v.ins[data]
    if not is_sharded(state):
        return v.replicated()
    if axis is None:
        return v.replicated("its axis is unknown")
    along = axis % v.rank(data)
    if along == state.at_axis:
        return v.replicated("along the rows")
    return v.only(data, sharded(state.at_axis - (lost and along < state.at_axis)))


def _linear_along(v: View, data: int, axis: int | None, lost: bool = False) -> Decision:
    """As `_along`, for linear operations: partial sums stay partial."""
    return v.only(data, PARTIAL) if v.ins[data] == PARTIAL else _along(v, data, axis, lost)


def _axis(v: View, i: int) -> int | None:
    value = v.const(i)
    return None if value is None else int(value.ravel()[0])


def split(v: View) -> Decision:
    """Cuts a tensor into equal parts, along the axis that the first input names."""
    return _linear_along(v, 1, _axis(v, 0))


def split_in_sizes(v: View) -> Decision:
    """Cuts a tensor into parts of given sizes."""
    return _linear_along(v, 0, _axis(v, 2))


def unpack(v: View) -> Decision:
    """Cuts a tensor along an axis. The parts lack this axis."""
    return _linear_along(v, 0, v.attr("axis"), lost=True)


def cumulated_sum(v: View) -> Decision:
    """`Cumsum`, which is linear."""
    return _linear_along(v, 0, _axis(v, 1))


def cumulated(v: View) -> Decision:
    """`Cumprod` and the like."""
    return _along(v, 0, _axis(v, 1))


def arg_extreme(v: View) -> Decision:
    """`ArgMax` and `ArgMin`: places along an axis. The output lacks this axis."""
    return _along(v, 0, _axis(v, 1), lost=True)


def reverse(v: View) -> Decision:
    """Reverses the order along some axes."""
    if v.ins[0] == PARTIAL:
        return v.only(0, PARTIAL)
    axes = v.const(1)
    if not is_sharded(v.ins[0]):
        return v.replicated()
    rank = len(known(v.idims[0]))
    if axes is None or v.ins[0].at_axis in {int(a) % rank for a in axes}:
        return v.replicated("rows change their order")
    return v.only(0, v.ins[0])


def one_hot(v: View) -> Decision:
    """Adds an axis of the classes."""
    state = v.ins[0]
    if not is_sharded(state):
        return v.replicated()
    new = v.attr("axis") % (v.rank(0) + 1)
    return v.only(0, sharded(state.at_axis + (new <= state.at_axis)))


RULES: dict[str, Rule] = {
    "ConcatV2": concat,
    "Pack": pack,
    "Split": split,
    "SplitV": split_in_sizes,
    "Unpack": unpack,
    "Cumsum": cumulated_sum,
    **dict.fromkeys(("Cumprod", "CumulativeLogsumexp"), cumulated),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_extreme),
    "ReverseV2": reverse,
    "OneHot": one_hot,
}
