"""Gathers tensors of a batch before anything else, because their rows may differ in form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def gathered_leaf(
    own: Any, gathered: Callable[[Any], Any], low: tf.Tensor, total: tf.Tensor
) -> Any:
    """Returns the whole of a dense, ragged or sparse tensor of which each worker has its rows.

    Args:
      own: the rows of this worker.
      gathered: gathers tensors of all workers along the first axis. A worker without rows gives
        none.
      low: the first row of this worker.
      total: the rows of all workers.
    """
    if isinstance(own, tf.RaggedTensor):
        lengths = [gathered(n) for n in own.nested_row_lengths()]
        values = gathered(own.flat_values)
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
    if isinstance(own, tf.SparseTensor):
        first = tf.one_hot(0, own.shape.rank, tf.cast(low, tf.int64), 0, dtype=tf.int64)
        indices, values = gathered(own.indices + first), gathered(own.values)
        sizes = tf.concat([[tf.cast(total, tf.int64)], own.dense_shape[1:]], 0)
        return tf.SparseTensor(indices, values, sizes)
    return gathered(own)
