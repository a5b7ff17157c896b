"""The collectives of a partitioned step, implemented with Horovod.

Horovod sums in single precision, and gathers numbers only. Sums in 16 bits and gathered texts are
made of other collectives.
"""

from __future__ import annotations

import collections

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.settings.options import BF16, FP16, NO_COMPRESSION

HALF = (tf.float16, tf.bfloat16)
"""Types for which Horovod rounds each partial sum, or which it does not support."""
CARRIERS = {
    **dict.fromkeys(HALF, tf.int16),
    **dict.fromkeys((tf.float32, tf.float64, tf.int64, tf.uint32, tf.uint64), tf.int32),
}
"""The types in which gathered tensors travel, so that one group can hold several types."""
EXTREMES = {"Max": hvd.Max, "Min": hvd.Min, "All": hvd.Min, "Any": hvd.Max}
Tensors = list[tf.Tensor]
HALF_DTYPES = {FP16: tf.float16, BF16: tf.bfloat16}


class HorovodCollectives:
    """Horovod's `collectives.Collectives`. Names are the same for any number of workers.

    Args:
      compression: how gradients travel, one of `COMPRESSIONS`.
    """

    def __init__(self, compression: str = NO_COMPRESSION) -> None:
        self._half = HALF_DTYPES.get(compression)

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        """Sums tensors in one group. Half precision travels in single, so it is rounded once."""
        if rounded and self._half is not None:
            return summed_in_half(tensors, self._half, name)
        given = [tf.cast(t, tf.float32) if t.dtype in HALF else t for t in tensors]
        group = _at_least_two(given)
        sums = hvd.grouped_allreduce(group, op=hvd.Sum, name=name, ignore_name_scope=True)
        return [tf.cast(s, t.dtype) for s, t in zip(sums, tensors, strict=False)]

    def gathered(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Gathers rows in one group for each type that travels, and texts one by one."""
        found: dict[int, tf.Tensor] = {}
        groups: dict[tf.DType, list[int]] = collections.defaultdict(list)
        for i, tensor in enumerate(tensors):
            if tensor.dtype == tf.string:
                found[i] = self._gathered_texts(tensor, f"{name}_{i}")
            else:
                groups[CARRIERS.get(tensor.dtype, tensor.dtype)].append(i)
        for carrier, places in groups.items():
            group = _at_least_two([_as(tensors[i], carrier) for i in places])
            whole = hvd.grouped_allgather(
                group, name=f"{name}_{carrier.name}", ignore_name_scope=True
            )
            for i, one in zip(places, whole, strict=False):
                shape = [None, *tensors[i].shape[1:]]
                found[i] = tf.ensure_shape(_as(one, tensors[i].dtype), shape)
        return [found[i] for i in range(len(tensors))]

    def _gathered_texts(self, texts: tf.Tensor, name: str) -> tf.Tensor:
        lengths, values = as_bytes(texts)
        (lengths,) = self.gathered([lengths], f"{name}_lengths")
        (values,) = self.gathered([values], f"{name}_bytes")
        return from_bytes(lengths, values)

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Finds an extreme. Truth values travel as integers: Horovod has no extremes of them."""
        given = tf.cast(tensor, tf.int32) if tensor.dtype == tf.bool else tensor
        given = tf.cast(tensor, tf.float32) if tensor.dtype in HALF else given
        found = hvd.allreduce(given, op=EXTREMES[kind], name=name, ignore_name_scope=True)
        return tf.cast(found, tensor.dtype)


def _as(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the same bits as numbers of another type. A type of half the size adds an axis."""
    return tensor if tensor.dtype == dtype else tf.bitcast(tensor, dtype)


def _at_least_two(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a second tensor to a single one.

    Horovod sends a group at once. A single tensor would wait for the end of Horovod's cycle.
    """
    return tensors if len(tensors) > 1 else [*tensors, tf.zeros([1], tensors[0].dtype)]


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
