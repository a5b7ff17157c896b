"""Sums over the workers of numbers that travel in 16 bits."""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.common.options import BF16, FP16

Tensors = list[tf.Tensor]
HALF_DTYPES = {FP16: tf.float16, BF16: tf.bfloat16}


def summed_in_half(tensors: Tensors, half: tf.DType, name: str) -> Tensors:
    """The sums over all workers, of which 16 bits per number travel, as often as in an allreduce.

    Each worker gets an equal slice of everybody's numbers, adds them up in their own precision, and
    gives the sums to all: a number is rounded once before it is added and once after, whatever
    the number of workers. Two workers give each other all numbers instead, which are as many bytes,
    and round once. Horovod's allreduce of 16 bits rounds each partial sum, is slower on processors,
    and knows no bfloat16.

    Args:
      tensors: of one floating dtype.
    """
    sizes = [int(t.shape.num_elements()) for t in tensors]
    rounded = tf.concat([tf.reshape(tf.cast(t, half), [-1]) for t in tensors], 0)
    dtype, workers = tensors[0].dtype, hvd.size_op()
    sums = tf.cond(
        tf.equal(workers, 2),
        lambda: _of_two(rounded, sizes, dtype, name),
        lambda: _in_slices(rounded, sizes, dtype, workers, name),
    )
    return [tf.reshape(s, t.shape) for s, t in zip(sums, tensors, strict=True)]


def _of_two(rounded: tf.Tensor, sizes: list[int], dtype: tf.DType, name: str) -> Tensors:
    of_both = _gathered(rounded, f"{name}.both")
    first, second = tf.split(tf.ensure_shape(of_both, [2 * sum(sizes)]), 2)
    # By rank, so that both workers add the same way.
    parts = zip(tf.split(first, sizes), tf.split(second, sizes), strict=True)
    return [tf.cast(one, dtype) + tf.cast(other, dtype) for one, other in parts]


def _in_slices(
    rounded: tf.Tensor, sizes: list[int], dtype: tf.DType, workers: tf.Tensor, name: str
) -> Tensors:
    slice_size = -(-sum(sizes) // workers)
    padded = tf.pad(rounded, [[0, slice_size * workers - sum(sizes)]])
    slices, _ = hvd.alltoall(
        tf.bitcast(padded, tf.int16),
        splits=tf.fill([workers], slice_size),
        name=f"{name}.slices",
        ignore_name_scope=True,
    )
    slices = tf.bitcast(tf.reshape(slices, [workers, slice_size]), rounded.dtype)
    own = tf.cast(tf.reduce_sum(tf.cast(slices, dtype), 0), rounded.dtype)
    of_all = _gathered(own, f"{name}.sums")
    return [tf.cast(part, dtype) for part in tf.split(of_all[: sum(sizes)], sizes)]


def _gathered(numbers: tf.Tensor, name: str) -> tf.Tensor:
    """Those of all workers by rank, of 16 bits each, which Horovod need not understand."""
    received = hvd.allgather(tf.bitcast(numbers, tf.int16), name=name, ignore_name_scope=True)
    return tf.bitcast(received, numbers.dtype)
