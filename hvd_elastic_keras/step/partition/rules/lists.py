"""TensorLists of loops and optionals of branches.

Loops collect one tensor in each iteration in a TensorList. Branches keep values for gradients in
optionals. A list has the state of its elements. If the shape of the elements has rows, the list is
made without a shape: when it is made, the state of its elements is not known yet.
"""

from __future__ import annotations

from hvd_elastic_keras.step.partition.rules.states import (
    EMPTY,
    PARTIAL,
    REPLICATED,
    Decision,
    Rule,
    State,
    View,
    is_sharded,
    joined,
    only_rows_axis,
    sharded,
)


def made(v: View) -> Decision:
    """`TensorListReserve` and `EmptyTensorList`: the first input is the shape of the elements."""
    is_open = v.const(0) is None
    return Decision((REPLICATED,) * len(v.ins), (EMPTY,), open_shape=0 if is_open else None)


def element_shape(v: View) -> Decision:
    """The shape of whole elements, as far as the list knows it."""
    return Decision(v.ins, (REPLICATED,), how="element_shape")


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


RULES: dict[str, Rule] = {
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
