"""A worker's part of a batch: its rows, and sizes and shapes that follow from their number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.tensorflow_names import (
    element_type_of_list,
    get_default_graph,
)
from hvd_elastic_keras.keras_internals.traced_graphs import emit
from hvd_elastic_keras.step.partition.rules.per_row import numbers_per_block
from hvd_elastic_keras.step.partition.rules.states import Form, State


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of a batch that a worker has, as scalars: int32 numbers and truth values.

    Attributes:
      low: the first row.
      size: the number of rows, at least 1: some operations of TensorFlow fail on none. A worker
        without rows computes any row, and uses `WorkerCollectives`.
      total: rows of the whole batch, at least 2.
      is_first: whether this worker contributes replicated values to partial sums; true on one
        worker only.
      has_rows: whether the worker has rows. If not, its assertions about rows do not count.
    """

    low: tf.Tensor
    size: tf.Tensor
    total: tf.Tensor
    is_first: tf.Tensor
    has_rows: tf.Tensor | bool = True

    def on_first(self, value: Any) -> Any:
        """Returns the value on the worker that contributes it, and zeros on the others."""
        return tf.where(self.is_first, value, tf.zeros([], value.dtype))

    def own_rows(self, tensor: Any, whole: Any, axis: int) -> Any:
        """Cuts out this worker's positions along an axis.

        The axis has the same number of positions for each row of the batch.

        Args:
          tensor: the traced tensor, which may be a TensorList.
          whole: its value over the whole batch.
        """
        shift = int(tensor.dtype == tf.variant)

        def cut(value: Any) -> Any:
            at = axis + shift
            count = tf.shape(value)[at] // self.total
            chosen = tf.one_hot(at, value.shape.rank, dtype=tf.int32)
            begin = chosen * (self.low * count)
            return tf.slice(value, begin, chosen * (self.size * count + 1) - 1)

        return on_elements(tensor, whole, cut)

    def own_of_blocks(self, whole: Any, blocks: int) -> Any:
        """Cuts this worker's rows out of each of several blocks along the first axis."""
        return without_blocks(by_block(whole, blocks)[:, self.low : self.low + self.size])


class PartSizes:
    """The sizes of a worker's rows, as tensors.

    Each tensor is made once in a graph: a large step asks for the same ones again and again.

    Args:
      own: rows of this worker, int32 scalar.
      total: rows of the batch, int32 scalar.
    """

    def __init__(self, own: tf.Tensor, total: tf.Tensor) -> None:
        self._own, self._total = own, total
        self._made: dict[Any, tf.Tensor] = {}

    def own(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the number of rows of this worker."""
        return self._once(("own", dtype), lambda: tf.cast(self._own, dtype))

    def total(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the number of rows of the batch."""
        return self._once(("total", dtype), lambda: tf.cast(self._total, dtype))

    def fraction(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the fraction of the rows that this worker has.

        The division comes before the cast: numbers of rows may be too large for the type.
        """
        return self._once(("fraction", dtype), lambda: tf.cast(self._own / self._total, dtype))

    def own_shape(self, form: Form, axis: int, dtype: tf.DType) -> tf.Tensor:
        """Returns the shape of this worker's rows, along one of the axes that have rows."""

        def made() -> tf.Tensor:
            own, total = self.own(dtype), self.total(dtype)
            return _shape(form, [own if i == axis else total for i in range(len(form))])

        return self._once((form, axis, dtype), made)

    def whole_shape(self, form: Form, dtype: tf.DType) -> tf.Tensor:
        """Returns the shape of all rows."""
        return self._once((form, "total", dtype), lambda: _shape(form, self.total(dtype)))

    def own_shape_of(self, whole_shape: Any, axis: int) -> Any:
        """Returns the shape of this worker's rows. A size of -1 or an open rank stays open."""
        if whole_shape.shape.rank == 0:
            return whole_shape
        count = whole_shape[axis] // self.total(whole_shape.dtype)
        own = count * self.own(whole_shape.dtype)
        size = tf.where(whole_shape[axis] < 0, whole_shape[axis], own)
        return tf.tensor_scatter_nd_update(whole_shape, [[axis]], [size])

    def whole_shape_of(self, value: Any, axis: int, dtype: tf.DType) -> Any:
        """Returns the shape of the whole tensor of which this worker has its rows."""
        shape = tf.shape(value, dtype)
        size = shape[axis] // self.own(dtype) * self.total(dtype)
        return tf.tensor_scatter_nd_update(shape, [[axis]], [size])

    def whole_element_shape(self, shape: Any, axis: int) -> Any:
        """Returns the shape of whole elements of a TensorList, from that of this worker's rows."""
        own, total = self.own(shape.dtype), self.total(shape.dtype)
        chosen = tf.logical_and(tf.range(tf.size(shape)) == axis, shape >= 0)
        return tf.where(chosen, shape // own * total, shape)

    def _once(self, key: Any, make: Callable[[], tf.Tensor]) -> tf.Tensor:
        key = (get_default_graph(), key)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def _shape(form: Form, num_rows: Any) -> tf.Tensor:
    """Returns the shape for this number of rows; a list gives one number for each axis."""
    dtype = tf.nest.flatten(num_rows)[0].dtype
    sizes = tf.constant([0 if is_rows else n for n, is_rows in form], dtype)
    per_row = tf.constant([n if is_rows else 0 for n, is_rows in form], dtype)
    return sizes + per_row * num_rows


def drawn_rows(op: Any, inputs: list[Any], low: tf.Tensor, sizes: PartSizes) -> tf.Tensor:
    """Draws this worker's rows, along axis 0, of a whole draw: from the counter where they begin.

    Args:
      op: the operation that draws.
      inputs: its inputs: the shape of the whole, key, counter and others.
      low: the first row of this worker.
    """
    shape, key, counter, *others = inputs
    own, total = sizes.own(tf.int64), sizes.total(tf.int64)
    whole, per_block = tf.cast(shape, tf.int64), numbers_per_block(op)
    entries = whole[0] // total
    per_row = tf.reduce_prod(whole[1:]) * entries
    begin, count = tf.cast(low, tf.int64) * per_row, own * per_row
    block, rest = begin // per_block, begin % per_block
    moved = counter + tf.cast(tf.stack([block, 0]), counter.dtype)
    length = tf.cast(count + per_block - 1, shape.dtype)
    flat = emit(op, [length[None], key, moved, *others])[0]
    return tf.reshape(flat[rest : rest + count], tf.concat([[entries * own], whole[1:]], 0))


def on_elements(tensor: Any, value: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to a tensor, or to the stacked elements of a TensorList."""
    if tensor.dtype != tf.variant:
        return function(value)
    dtype = element_type_of_list(tensor)
    stacked = tf.raw_ops.TensorListStack(input_handle=value, element_shape=-1, element_dtype=dtype)
    made = function(stacked)
    shape = tf.shape(made)[1:]
    return tf.raw_ops.TensorListFromTensor(tensor=made, element_shape=shape)


def rows_first(value: Any, state: State) -> Any:
    """Returns a worker's part of a tensor with its rows along the first axis."""
    axis = state.at_axis
    if state.blocks is not None:
        return tf.transpose(by_block(value, state.blocks), [1, 0, *range(2, value.shape.rank + 1)])
    order = [axis, *(i for i in range(value.shape.rank) if i != axis)]
    return tf.transpose(value, order) if axis else value


def rows_back(value: Any, state: State) -> Any:
    """The reverse of `rows_first`."""
    axis, rank = state.at_axis, value.shape.rank
    if state.blocks is not None:
        return without_blocks(tf.transpose(value, [1, 0, *range(2, rank)]))
    order = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
    return tf.transpose(value, order) if axis else value


def by_block(value: Any, blocks: int) -> Any:
    """Reshapes a tensor with rows in blocks from [blocks * rows, …] to [blocks, rows, …]."""
    return tf.reshape(value, tf.concat([[blocks, -1], tf.shape(value)[1:]], 0))


def without_blocks(value: Any) -> Any:
    """The reverse of `by_block`."""
    return tf.reshape(value, tf.concat([[-1], tf.shape(value)[2:]], 0))
