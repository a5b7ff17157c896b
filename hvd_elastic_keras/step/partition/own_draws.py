"""Draws a worker's rows of random numbers, without other workers' rows; see `rules/draws.py`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.traced_graphs import emit
from hvd_elastic_keras.step.partition.part_sizes import PartSizes
from hvd_elastic_keras.step.partition.rules.draws import numbers_per_block


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
