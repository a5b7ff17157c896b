"""Sums over the workers of what each has computed of a step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.common.options import BF16, FP16, NO_COMPRESSION
from hvd_elastic_keras.step.running_sums import Tensors

LEAST_BYTES = 16 * 2**20
"""Of gradients that travel in several parts. Of fewer, parts cost more than they save."""
MOST_PARTS = 4
SMALL = 1 / 256
"""Of all bytes: a gradient that saves nothing by being early, but would make its part late. Busy
threads may compute a bias of the last layer after all large products of the backward pass."""
HALF_DTYPES = {FP16: tf.float16, BF16: tf.bfloat16}


class Reduction:
    """Sums over the workers; alone there is nothing to wait for, and nothing is rounded.

    Args:
      name: of its collectives.
      compression: how gradients travel, one of `COMPRESSIONS`. All else travels as it is.
    """

    def __init__(self, name: str, compression: str = NO_COMPRESSION) -> None:
        self._name = name
        self._half = HALF_DTYPES.get(compression)

    def __call__(
        self, gradients: Tensors, exact: tf.Tensor, has_others: tf.Tensor
    ) -> tuple[Tensors, tf.Tensor]:
        """The sums of both, the same bits on every worker.

        Args:
          exact: what is never rounded to 16 bits; shape [n], dtype of the gradients.
          has_others: whether there are other workers. A collective takes 0.6 ms even alone.
        """
        *sums, exact = tf.cond(
            has_others,
            lambda: self._over_workers(gradients, exact),
            lambda: [*gradients, exact],
        )
        return sums, exact

    def _over_workers(self, gradients: Tensors, exact: tf.Tensor) -> Tensors:
        parts = parts_of(gradients)
        groups = [[gradients[i] for i in part] for part in parts]
        names = [self._name, *(f"{self._name}.early{i}" for i in range(1, len(groups)))][::-1]
        if self._half is None:
            groups[-1].append(exact)
            sums = [summed(*group) for group in zip(groups, names, strict=True)]
            exact = sums[-1].pop()
        else:
            sums = [
                summed_in_half(group, self._half, f"{name}.gradients")
                for group, name in zip(groups, names, strict=True)
                if group
            ]
            (exact,) = summed([exact], self._name)
        places = itertools.chain(*parts)
        found = dict(zip(places, itertools.chain(*sums), strict=True))
        return [*(found[i] for i in range(len(gradients))), exact]


def parts_of(gradients: Sequence[tf.Tensor | tf.TensorSpec]) -> list[list[int]]:
    """Which gradients travel together, in the order in which a backward pass is done with them.

    That is from the last to the first; small ones wait for the last part. The same on all workers:
    it follows from sizes alone. Each part is its own collective, which begins while the rest of the
    backward pass is computed.

    Returns places in `gradients`, each in one part; the last part has the first gradient.
    """
    sizes = [int(g.shape.num_elements()) * g.dtype.size for g in gradients]
    if sum(sizes) < LEAST_BYTES:
        return [list(range(len(sizes)))]
    early: list[list[int]] = []
    part: list[int] = []
    for i in reversed(range(1, len(sizes))):
        if sizes[i] < SMALL * sum(sizes):
            continue
        part = [i, *part]
        if MOST_PARTS * sum(sizes[j] for j in part) >= sum(sizes):
            early.append(part)
            part = []
    are_early = set(itertools.chain(*early))
    return [*early, [i for i in range(len(sizes)) if i not in are_early]]


def summed(tensors: Tensors, name: str) -> Tensors:
    """The sums over all workers, in one collective."""
    return list(hvd.grouped_allreduce(tensors, op=hvd.Sum, name=name, ignore_name_scope=True))


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
