"""Infers the dimensions and values of a graph's tensors, operation by operation.

TensorFlow's own shape functions answer for each number of rows that `dimensions.py` tries. Whole
numbers that follow from sizes alone, such as the arguments of a reshape, are computed in the same
way, by TensorFlow's own kernels.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.keras_internals.tensorflow_names import tensor_util
from hvd_elastic_keras.keras_internals.traced_graphs import emit, has_functions
from hvd_elastic_keras.step.partition.rules.dimensions import (
    ROWS,
    Dims,
    constant,
    is_constant,
    static,
)

Values = tuple[npt.NDArray[Any], ...]
"""A small tensor of whole numbers for each number of rows that is tried."""
NO_ELEMENTS: Values = ()
"""The values of a list without elements so far. Later elements may have any values."""
MOST_VALUES = 64
WHOLE_NUMBERS = (tf.int32, tf.int64, tf.bool)
OPAQUE = (tf.variant, tf.resource)
SAME_SHAPE = frozenset({"Identity", "StopGradient", "ZerosLike", "OnesLike", "Cast", "Snapshot"})


def _is_no_broadcast(op: Any, inputs: Sequence[Dims], shapes: Sequence[Any]) -> bool:
    """Whether shapes are those of a comparison of tensors that differ in shape.

    `a == b` of tensors is then a single False. Two batches leave the sizes of texts open, and
    stand-ins for them differ; the texts themselves have the same length.
    """
    if op.type not in ("Equal", "NotEqual"):
        return False
    ranks = [len(dims) for dims in inputs if dims is not None]
    rank = shapes[0].rank
    return rank is None or rank < max(ranks, default=0)


@dataclasses.dataclass
class Sizes:
    """Dimensions and values of the tensors of one graph, by their names.

    Attributes:
      of_bodies: sizes in functions that the graph calls, by the graph of the function and the
        states of its inputs. Each entry holds what is known of the inputs, and what has been found
        for all tensors.
      decisions: what was decided with these sizes, by operation and states of its inputs.
      operations: the operations of the graph that are needed, in their order.
    """

    dims: dict[str, Dims] = dataclasses.field(default_factory=dict)
    values: dict[str, Values] = dataclasses.field(default_factory=dict)
    of_bodies: dict[Any, list[tuple[Any, Sizes]]] = dataclasses.field(default_factory=dict)
    decisions: dict[Any, Any] = dataclasses.field(default_factory=dict)
    operations: list[Any] = dataclasses.field(default_factory=list)

    def const(self, tensor: Any) -> npt.NDArray[Any] | None:
        """Returns a tensor's value if it is the same for any number of rows, else None."""
        values = self.values.get(tensor.name)
        if not values or any(not np.array_equal(values[0], v) for v in values[1:]):
            return None
        return values[0]

    def give(self, tensor: Any, dims: Dims, values: Values | None = None) -> None:
        """Notes what is known of a tensor, together with what its trace knows."""
        known = None if tensor.dtype == tf.variant else static(tensor.shape)
        if dims is None:
            dims = known
        elif known is not None and len(known) == len(dims):
            dims = tuple(d if d is not None else k for d, k in zip(dims, known, strict=True))
        self.dims[tensor.name] = dims
        if values is not None:
            self.values[tensor.name] = values

    def infer(self, op: Any) -> None:
        """Finds sizes and values of an operation's outputs. Its inputs have been noted before."""
        if all(t.name in self.dims for t in op.outputs):
            return
        if op.type == "Const":
            value = tensor_util.MakeNdarray(op.get_attr("value"))
            whole = op.outputs[0].dtype in WHOLE_NUMBERS and value.size <= MOST_VALUES
            self.give(op.outputs[0], static(op.outputs[0].shape), (value,) * 3 if whole else None)
            return
        for tensor, dims in zip(op.outputs, self._output_dims(op), strict=True):
            self.give(tensor, dims)
        for tensor, values in zip(op.outputs, self._output_values(op), strict=True):
            if values is not None:
                self.values[tensor.name] = values

    def _output_dims(self, op: Any) -> list[Dims]:
        known = [None if t.dtype == tf.variant else static(t.shape) for t in op.outputs]
        if all(d is not None and None not in d for d in known) or not op.inputs:
            return known
        inputs = [self.dims[t.name] for t in op.inputs]
        if op.type in SAME_SHAPE:
            return [inputs[0]]
        if op.type in ("TensorListReserve", "EmptyTensorList"):
            return [_from_values(self.values.get(op.inputs[0].name))]
        if any(t.dtype in OPAQUE for t in (*op.inputs, *op.outputs)):
            return _of_opaque(op, inputs) or known
        found = []
        values = [self.values.get(t.name) or None for t in op.inputs]
        attributes = _attributes(op)
        for i in range(len(ROWS)):
            shapes = _shapes_at(op, attributes, inputs, values, i)
            if shapes is None or _is_no_broadcast(op, inputs, shapes):
                return known
            found.append(shapes)
        return [_together([shapes[n] for shapes in found]) for n in range(len(op.outputs))]

    def _output_values(self, op: Any) -> Sequence[Values | None]:
        nothing: list[Values | None] = [None] * len(op.outputs)
        if op.type in ("Shape", "ShapeN", "Size", "Rank"):
            return [
                _shape_values(op.type, self.dims[t.name], o.dtype)
                for t, o in zip(op.inputs, op.outputs, strict=True)
            ]
        if any(t.dtype == tf.variant for t in op.outputs):
            return self._list_values(op)
        if op.type == "TensorListElementShape":
            return [_shape_values("Shape", self.dims[op.inputs[0].name], op.outputs[0].dtype)]
        if not op.inputs or any(t.dtype not in WHOLE_NUMBERS for t in (*op.inputs, *op.outputs)):
            return nothing
        values = [self.values.get(t.name) for t in op.inputs]
        if not all(values) or op.op_def.is_stateful or has_functions(op):
            return nothing
        results = []
        for i in range(len(ROWS)):
            try:
                results.append([t.numpy() for t in emit(op, [tf.constant(v[i]) for v in values])])  # type: ignore[index]
            except tf.errors.OpError:
                return nothing
        small = [all(r[n].size <= MOST_VALUES for r in results) for n in range(len(op.outputs))]
        return [tuple(r[n] for r in results) if ok else None for n, ok in enumerate(small)]

    def _list_values(self, op: Any) -> Sequence[Values | None]:
        """Returns the values of lists that are used as stacks, whose elements are all the same."""
        given = [self.values.get(t.name) for t in op.inputs]
        match op.type:
            case "EmptyTensorList":
                return [NO_ELEMENTS]
            case "TensorListPushBack":
                return [common_values(given[0], given[1])]
            case "TensorListPopBack":
                return [given[0], given[0] or None]
        return [None] * len(op.outputs)


def common_values(one: Values | None, other: Values | None) -> Values | None:
    """Returns what is known of a tensor that has one of two values."""
    if one is None or other is None:
        return None
    if not one or not other:
        return one or other
    return one if same_values(one, other) else None


def same_values(one: Values | None, other: Values | None) -> bool:
    """Whether the same is known of two tensors."""
    if not one or not other:
        return one == other
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _shape_values(kind: str, dims: Dims, dtype: tf.DType) -> Values | None:
    if dims is None or len(dims) > MOST_VALUES:
        return None
    if kind == "Rank":
        return (np.asarray(len(dims), dtype.as_numpy_dtype),) * len(ROWS)
    if None in dims:
        return None
    at = [[d[i] for d in dims if d is not None] for i in range(len(ROWS))]
    if kind == "Size":
        at = [np.prod(sizes, dtype=np.int64) for sizes in at]  # type: ignore[misc]
    return tuple(np.asarray(sizes, dtype.as_numpy_dtype) for sizes in at)


def _from_values(shape: Values | None) -> Dims:
    """Returns the dimensions that a tensor of sizes stands for. A size of -1 is unknown."""
    if shape is None or shape[0].ndim != 1:
        return None
    sizes = zip(*(v.tolist() for v in shape), strict=True)
    return tuple(None if min(s) < 0 else tuple(s) for s in sizes)


def _together(shapes: list[Any]) -> Dims:
    """Turns one shape for each number of rows into dimensions."""
    ranks = {shape.rank for shape in shapes}
    if len(ranks) > 1 or None in ranks:
        return None
    return tuple(None if None in sizes else sizes for sizes in zip(*shapes, strict=True))


def _shapes_at(
    op: Any, attributes: Any, inputs: list[Dims], values: Sequence[Values | None], i: int
) -> list[tf.TensorShape] | None:
    """Returns the outputs' shapes for the `i`-th number of rows; None if TensorFlow refuses."""
    sizes = tuple(None if d is None else tuple(s and s[i] for s in d) for d in inputs)
    numbers = tuple(None if v is None else (v[i].shape, v[i].tobytes()) for v in values)
    key = (op.type, sizes, numbers, attributes)
    if key not in _ANSWERS:
        _ANSWERS[key] = _asked(op, inputs, values, i)
    return _ANSWERS[key]


_ANSWERS: dict[Any, list[tf.TensorShape] | None] = {}


def _attributes(op: Any) -> Any:
    return tuple(
        (name, value.SerializeToString())
        for name, value in sorted(op.node_def.attr.items())
        if not name.startswith("_")
    )


def _asked(
    op: Any, inputs: list[Dims], values: Sequence[Values | None], i: int
) -> list[tf.TensorShape] | None:
    # A graph that is used again would keep the functions that the operation calls.
    graph, given = (
        (tf.Graph(), tf.compat.v1.placeholder) if has_functions(op) else (_SCRATCH, _scratch_input)
    )
    with graph.as_default():
        arguments = []
        for tensor, dims, value in zip(op.inputs, inputs, values, strict=True):
            if value is not None:
                arguments.append(tf.constant(value[i], tensor.dtype))
            else:
                shape = None if dims is None else tuple(s and s[i] for s in dims)
                arguments.append(given(tensor.dtype, shape))
        try:
            return [t.shape for t in emit(op, arguments)]
        except (ValueError, TypeError, tf.errors.OpError):
            return None


_SCRATCH = tf.Graph()
"""Where TensorFlow is asked for shapes."""


@functools.cache
def _scratch_input(dtype: tf.DType, shape: tuple[int | None, ...] | None) -> Any:
    return tf.compat.v1.placeholder(dtype, shape)


def _of_opaque(op: Any, inputs: list[Dims]) -> list[Dims] | None:
    """Finds dimensions for variables and TensorLists. A list has the dimensions of its elements."""
    kind = op.type
    if kind == "ResourceGather" and inputs[0] is not None and inputs[1] is not None:
        return [(*inputs[1], *inputs[0][1:])] if op.get_attr("batch_dims") == 0 else None
    if kind == "ResourceGatherNd" and inputs[0] is not None and inputs[1]:
        (*outer, depth) = inputs[1]
        return [(*outer, *inputs[0][depth[0] :])] if is_constant(depth) and depth else None
    if kind == "LookupTableFindV2" and inputs[1] is not None:
        return [inputs[1]] if op.outputs[0].shape.rank == len(inputs[1]) else None
    if kind == "VariableShape" and inputs[0] is not None:
        return [(constant(len(inputs[0])),)]
    if kind in ("TensorListSetItem", "TensorListPushBack"):
        return [inputs[-1]]
    if kind in ("TensorListGetItem", "OptionalGetValue"):
        return [inputs[0]]
    if kind == "TensorListPopBack":
        return [inputs[0], inputs[0]]
    if kind == "TensorListStack" and inputs[0] is not None:
        number = op.get_attr("num_elements")
        return [(constant(number) if number >= 0 else None, *inputs[0])]
    if kind == "TensorListFromTensor" and inputs[0]:
        return [inputs[0][1:]]
    if kind in ("AddN", "Identity", "ZerosLike", "OptionalFromValue"):
        return [inputs[0]]
    return None
