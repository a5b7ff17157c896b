"""Shapes and shares that follow from the number of rows of a worker, as operations need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.tensorflow_names import get_default_graph
from hvd_elastic_keras.step.partition.operations.states import Form


class PartSizes:
    """Each is made once in a graph: a large step asks for the same ones again and again.

    Args:
      own: rows of this worker, int32 scalar; `total` are those of the batch.
    """

    def __init__(self, own: tf.Tensor, total: tf.Tensor) -> None:
        self._own, self._total = own, total
        self._made: dict[Any, tf.Tensor] = {}

    def own(self, dtype: tf.DType) -> tf.Tensor:
        """Rows of this worker."""
        return self._once(("own", dtype), lambda: tf.cast(self._own, dtype))

    def total(self, dtype: tf.DType) -> tf.Tensor:
        """Rows of the batch."""
        return self._once(("total", dtype), lambda: tf.cast(self._total, dtype))

    def fraction(self, dtype: tf.DType) -> tf.Tensor:
        """What part of the rows this worker has; numbers of rows may be too large for the type."""
        return self._once(("fraction", dtype), lambda: tf.cast(self._own / self._total, dtype))

    def own_shape(self, form: Form, dtype: tf.DType) -> tf.Tensor:
        """The shape of the rows of this worker, which lie along one axis."""
        return self._once((form, "own", dtype), lambda: _shape(form, self.own(dtype)))

    def whole_shape(self, form: Form, dtype: tf.DType) -> tf.Tensor:
        """The shape of all rows."""
        return self._once((form, "total", dtype), lambda: _shape(form, self.total(dtype)))

    def _once(self, key: Any, make: Callable[[], tf.Tensor]) -> tf.Tensor:
        key = (get_default_graph(), key)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def _shape(form: Form, num_rows: tf.Tensor) -> tf.Tensor:
    sizes = tf.constant([0 if is_rows else n for n, is_rows in form], num_rows.dtype)
    per_row = tf.constant([n if is_rows else 0 for n, is_rows in form], num_rows.dtype)
    return sizes + per_row * num_rows
