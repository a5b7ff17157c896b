"""Several tensors joined to one, and one cut into several.

The last section has TensorLists of loops and optionals of branches. Loops collect one tensor in
each iteration in a TensorList. Branches keep values for gradients in optionals. A list has the
state of its elements. If the shape of the elements has rows, the list is made without a shape: when
it is made, the state of its elements is not known yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hvd_elastic_keras.step.partition.rules.states import (
    EMPTY,
    PARTIAL,
    REPLICATED,
    Decision,
    How,
    Rule,
    State,
    View,
    as_rows,
    is_sharded,
    joined,
    known,
    only_rows_axis,
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


def made(v: View) -> Decision:
    """`TensorListReserve` and `EmptyTensorList`: the first input is the shape of the elements."""
    is_open = v.const(0) is None
    return Decision((REPLICATED,) * len(v.ins), (EMPTY,), open_shape=0 if is_open else None)


def element_shape(v: View) -> Decision:
    """The shape of whole elements, as far as the list knows it."""
    return Decision(v.ins, (REPLICATED,), how=How.ELEMENT_SHAPE)


def length(v: View) -> Decision:
    """The length of a list is the same on all workers."""
    return Decision(v.ins, (REPLICATED,))


def from_tensor(v: View) -> Decision:
    """The first axis of the tensor numbers the elements."""
    state = v.ins[0]
    if is_sharded(state) and state.at_axis > 0:
        element = sharded(state.at_axis - 1)
        return Decision((state, REPLICATED), (element,), local_size=_local(element, 1))
    if state == PARTIAL:
        return Decision((PARTIAL, REPLICATED), (PARTIAL,))
    return v.replicated("a list of rows")


def stack(v: View) -> Decision:
    """All elements in one tensor, along a new first axis."""
    state = v.ins[0]
    out = sharded(state.at_axis + 1) if is_sharded(state) else state
    out = REPLICATED if state == EMPTY else out
    return Decision((state, REPLICATED), (out,), local_size=_local(state, 1))


def get_item(v: View) -> Decision:
    """One element."""
    element = _element(v, 0)
    want = (v.ins[0], REPLICATED, REPLICATED)
    return Decision(want, (element,), local_size=_local(element, 2))


def pop_back(v: View) -> Decision:
    """The list without its last element, and this element."""
    element = _element(v, 1)
    want = (v.ins[0], REPLICATED)
    return Decision(want, (v.ins[0], element), local_size=_local(element, 1))


def _element(v: View, output: int) -> State:
    """Returns the state of an element.

    An element of a list without elements, which is mostly zeros, counts as rows if its dimensions
    allow this, else as replicated.
    """
    if v.ins[0] != EMPTY:
        return v.ins[0]
    axis = only_rows_axis(v.op.outputs[output], v.odims[output])
    return REPLICATED if axis is None else sharded(axis)


def _local(element: State, shape: int) -> tuple[int, int] | None:
    """Returns `local_size` for an input that holds the shape of whole elements.

    None if the worker does not have only its rows of each element.
    """
    return (shape, element.at_axis) if is_sharded(element) else None


def put(v: View) -> Decision:
    """`TensorListSetItem` and `TensorListPushBack`: the element is the last input."""
    state, element = v.ins[0], v.ins[-1]
    both = joined(state, element, v.idims[-1])
    others = (REPLICATED,) * (len(v.ins) - 2)
    return Decision((EMPTY if state == EMPTY else both, *others, both), (both,))


def nothing_kept(v: View) -> Decision:
    """`OptionalNone`: no value is kept."""
    return Decision((), (EMPTY,))


def kept(v: View) -> Decision:
    """`OptionalFromValue` and `OptionalGetValue`."""
    if len(set(v.ins)) != 1 or v.ins[0] == EMPTY:
        return v.replicated("several kept values")
    return Decision(v.ins, (v.ins[0],) * len(v.op.outputs))


RULES |= {
    **dict.fromkeys(("TensorListReserve", "EmptyTensorList"), made),
    "TensorListElementShape": element_shape,
    "TensorListLength": length,
    "TensorListFromTensor": from_tensor,
    "TensorListStack": stack,
    "TensorListGetItem": get_item,
    "TensorListPopBack": pop_back,
    **dict.fromkeys(("TensorListSetItem", "TensorListPushBack"), put),
    "OptionalNone": nothing_kept,
    **dict.fromkeys(("OptionalFromValue", "OptionalGetValue"), kept),
}
