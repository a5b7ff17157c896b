"""Sums over the workers of numbers that travel in 16 bits."""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.common.options import BF16, FP16

Tensors = list[tf.Tensor]
HALF_DTYPES = {FP16: tf.float16, BF16: tf.bfloat16}


def summed_in_half(tensors: Tensors, half: tf.DType, name: str) -> Tensors:
    """Returns the sums over all workers. 16 bits per number travel, as often as in an allreduce.

    Each worker receives an equal slice of every worker's numbers, adds them up in their original
    precision, and sends the sums to all workers. So a number is rounded once before it is added and
    once after, for any number of workers. Two workers send each other all their numbers instead.
    These are as many bytes, and are rounded only once. Horovod's allreduce of 16 bits rounds each
    partial sum, is slower on processors, and does not support bfloat16.

    Args:
      tensors: tensors of one floating dtype.
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
    # In the order of ranks, so that both workers add in the same order.
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
    """Gathers 16-bit numbers of all workers, by rank. Horovod need not know their type."""
    received = hvd.allgather(tf.bitcast(numbers, tf.int16), name=name, ignore_name_scope=True)
    return tf.bitcast(received, numbers.dtype)
