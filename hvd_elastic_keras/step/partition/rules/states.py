"""States of tensors on a worker, and decisions about operations."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import msgspec
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.step.partition.rules.dimensions import (
    Dims,
    dim_at,
    is_multiple,
    is_rows,
    rows_axes,
    tried,
)
from hvd_elastic_keras.step.partition.rules.sizes import Sizes


class State(msgspec.Struct, frozen=True):
    """The part of a tensor that a worker holds.

    Attributes:
      kind: "replicated": the whole tensor, the same on all workers. "sharded": the worker's rows,
        along `axis`. "partial": a summand; the sum over the workers is the tensor. "empty": a
        TensorList without elements, which may become any of these. "handle": the handle of a
        variable. "conjunct": whether a condition holds for all rows of the worker; it holds for all
        rows of the batch if it does on all workers. "blocks": axis 0 consists of `blocks` blocks
        with all rows in each; the worker has its rows of each block.
      axis: the axis of the rows, if the tensor is sharded. For a TensorList, an axis of its
        elements.
      blocks: the number of blocks, if the kind is "blocks".
    """

    kind: str
    axis: int | None = None
    blocks: int | None = None

    @property
    def at_axis(self) -> int:
        """The axis of the rows; -1 if there is none."""
        return -1 if self.axis is None else self.axis

    def __str__(self) -> str:
        if self.blocks is not None:
            return f"rows of {self.blocks} blocks"
        return self.kind if self.axis is None else f"{self.kind}({self.axis})"


REPLICATED, PARTIAL, EMPTY, HANDLE, CONJUNCT = map(
    State, ("replicated", "partial", "empty", "handle", "conjunct")
)


def sharded(axis: int) -> State:
    """Returns the state in which each worker has its rows, along this axis."""
    return State("sharded", axis)


def is_sharded(state: State) -> bool:
    """Whether each worker has its rows only."""
    return state.kind == "sharded"


def in_blocks(number: int) -> State:
    """Returns the state in which each worker has its rows of this number of blocks of axis 0."""
    return State("blocks", 0, number)


def joined(one: State, other: State, dims: Dims) -> State:
    """Returns the state that is cheapest to convert both to, for a tensor of these dimensions."""
    if other in (one, EMPTY):
        return one
    if one == EMPTY:
        return other
    if {one, other} == {REPLICATED, PARTIAL}:
        return PARTIAL
    for a, b in ((one, other), (other, one)):
        if a == REPLICATED and is_sharded(b) and is_rows(dim_at(dims, b.at_axis)):
            return b
    return REPLICATED


Form = tuple[tuple[int, bool], ...]
"""The shape of a whole tensor: each dimension is a number, or that many times the rows."""


class How(enum.Enum):
    """How a worker computes an operation."""

    RUN = enum.auto()
    """Runs the operation itself."""
    VARIABLE = enum.auto()
    """Runs it on the handle of a variable."""
    ALIAS = enum.auto()
    """Computes nothing: output `i` is input `i`."""
    DRAW = enum.auto()
    """Draws the random numbers of the worker's rows, which are those of a draw for all rows."""
    CALL = enum.auto()
    """Runs the plan of the called function."""
    LOOP = enum.auto()
    """Runs a loop of the plans of its body and its condition."""
    COND = enum.auto()
    """Runs the plan of one of the two branches."""
    MEAN = enum.auto()
    """Scales the mean of the worker's rows by their share, so that the sum is the whole mean."""
    EXTREME = enum.auto()
    """Compares the extreme of the worker's rows with those of the other workers."""
    ASSERTION = enum.auto()
    """Checks a condition once the workers agree on whether it holds."""
    SHAPE = enum.auto()
    """Returns the shape of the whole tensors, though the worker may have only its rows of them."""
    ELEMENT_SHAPE = enum.auto()
    """Returns the shape of a list's elements."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """How an operation is computed by several workers.

    Attributes:
      want: the states in which it takes its inputs.
      out: the states in which it gives its outputs.
      how: what `execution.py` does in place of the operation.
      local_size: (input, axis): this input holds the shape of the output. Its size at `axis` is
        replaced by the size of the worker's rows.
      open_shape: this input holds the shape of the elements of a list. The shape stays open.
      whole: why every worker computes the whole although there are rows; empty if it does not.
      forms: the `Form`s of the inputs whose shapes are asked for, or, with `local_size`, of the
        outputs; None where unknown.
    """

    want: tuple[State, ...]
    out: tuple[State, ...]
    how: How = How.RUN
    local_size: tuple[int, int] | None = None
    open_shape: int | None = None
    whole: str = ""
    forms: tuple[Form | None, ...] = ()

    def needs(self, number: int) -> bool:
        """Whether an input has to be computed: not if only its shape is used, which is known."""
        is_known = self.how == How.SHAPE and is_sharded(self.want[number])
        return not is_known or self.forms[number] is None


class View:
    """An operation as a rule sees it: states, dimensions and constants, but no values of the batch.

    Attributes:
      kind: TensorFlow's name of the operation.
      ins: the states of the inputs.
      idims, odims: the dimensions of inputs and outputs.
    """

    def __init__(self, op: Any, ins: tuple[State, ...], sizes: Sizes) -> None:
        self.op = op
        self.kind: str = op.type
        self.ins = ins
        self.idims: list[Dims] = [sizes.dims[t.name] for t in op.inputs]
        self.odims: list[Dims] = [sizes.dims[t.name] for t in op.outputs]
        self._sizes = sizes

    def const(self, i: int) -> npt.NDArray[Any] | None:
        """Returns an input of whole numbers, if it is the same for any number of rows."""
        return self._sizes.const(self.op.inputs[i])

    def attr(self, name: str) -> Any:
        """Returns an attribute of the operation."""
        return self.op.get_attr(name)

    @property
    def has_rows(self) -> bool:
        """Whether an input is sharded."""
        return any(map(is_sharded, self.ins))

    def rank(self, i: int) -> int:
        """Returns the rank of an input.

        Raises:
          UnknownSizeError: the rank is unknown.
        """
        return len(known(self.idims[i]))

    @property
    def forms(self) -> tuple[Form | None, ...]:
        """The forms of all inputs; None for an input with an unknown dimension."""
        return tuple(map(_form, self.op.inputs, self.idims))

    @property
    def output_forms(self) -> tuple[Form | None, ...]:
        """The forms of all outputs; None for an output with an unknown dimension."""
        return tuple(map(_form, self.op.outputs, self.odims))

    def run(self, *want: State, out: State, **more: Any) -> Decision:
        """Decides to run the operation itself. All outputs are in one state."""
        return Decision(want, (out,) * len(self.op.outputs), **more)

    def only(self, i: int, out: State, **more: Any) -> Decision:
        """Decides to take one input in the state that it has, and the others replicated."""
        want = tuple(s if n == i else _whole(s) for n, s in enumerate(self.ins))
        return Decision(want, (out,) * len(self.op.outputs), **more)

    def replicated(self, why: str = "") -> Decision:
        """Decides that every worker computes the whole.

        This is right for any operation that follows from its inputs alone.
        """
        out = (REPLICATED,) * len(self.op.outputs)
        why = why if any(s.axis is not None for s in self.ins) else ""
        return Decision(tuple(map(_whole, self.ins)), out, whole=why)


def _form(tensor: Any, dims: Dims) -> Form | None:
    """Returns the form of a tensor; None if a dimension is unknown.

    Dimensions come from the trace, except rows: these are as certain as the sharding.
    """
    if dims is None or tensor.dtype == tf.variant or tensor.shape.rank != len(dims):
        return None
    found: list[tuple[int, bool]] = []
    for size, dim in zip(tensor.shape, dims, strict=True):
        if size is not None:
            found.append((size, False))
        elif dim is not None and is_multiple(dim):
            found.append((dim[0] // tried()[0], True))
        else:
            return None
    return tuple(found)


def _whole(state: State) -> State:
    return state if state in (HANDLE, EMPTY) else REPLICATED


Rule = Callable[[View], Decision]


class UnknownSizeError(Exception):
    """A rule needs a size or a value that is unknown."""


def known(dims: Dims) -> tuple[Any, ...]:
    """Returns the dimensions of a tensor whose rank is known.

    Raises:
      UnknownSizeError: the rank is unknown.
    """
    if dims is None:
        raise UnknownSizeError
    return dims


def names(text: str) -> frozenset[str]:
    """Splits a text with names of operations, separated by spaces."""
    return frozenset(text.split())


def is_one(dims: Dims, axis: int) -> bool:
    """Whether a dimension is 1 for any number of rows. A missing leading one counts as 1."""
    if dims is not None and axis < 0:
        return True
    dim = dim_at(dims, axis)
    return dim is not None and set(dim) == {1}


def as_rows(state: State, dims: Dims, axis: int) -> State | None:
    """Returns the state wanted of an operand, if the element-wise result has rows along `axis`.

    Returns:
      The state; None if it is unknown whether the operand has rows there.
    """
    if state == sharded(axis) or is_rows(dim_at(dims, axis)):
        return sharded(axis)
    return REPLICATED if is_one(dims, axis) else None


def only_rows_axis(tensor: Any, dims: Dims) -> int | None:
    """Returns the only axis along which a whole tensor can be cut into rows; else None."""
    if tensor.dtype in (tf.variant, tf.resource):
        return None
    axes = rows_axes(dims)
    return axes[0] if len(axes) == 1 else None
