"""Shapes and fractions that follow from a worker's number of rows, as operations need them.

`drawn_rows` draws a worker's rows of random numbers, without other workers' rows
(`rules/per_row.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.tensorflow_names import get_default_graph
from hvd_elastic_keras.keras_internals.traced_graphs import emit
from hvd_elastic_keras.step.partition.rules.per_row import numbers_per_block
from hvd_elastic_keras.step.partition.rules.states import Form


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
