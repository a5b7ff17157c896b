"""Converts strings to numbers and back: Horovod sends numbers only."""

from __future__ import annotations

import tensorflow as tf


def as_bytes(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the lengths of strings, in the same shape, and all their bytes in one tensor."""
    joined = tf.strings.reduce_join(tf.reshape(texts, [-1]))
    return tf.strings.length(texts), tf.io.decode_raw(joined, tf.uint8)


def from_bytes(lengths: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns the strings for which `as_bytes` returns these lengths and values."""
    each = tf.gather(tf.constant([bytes([i]) for i in range(256)]), tf.cast(values, tf.int32))
    flat = tf.reshape(lengths, [-1])
    numbers = tf.repeat(tf.range(tf.size(flat)), flat)
    texts = tf.strings.unsorted_segment_join(each, numbers, tf.size(flat))
    return tf.reshape(texts, tf.shape(lengths))
