"""The collectives of a partitioned step, implemented with Horovod."""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.common.options import NO_COMPRESSION
from hvd_elastic_keras.step.partition import texts
from hvd_elastic_keras.step.partition.half_sums import HALF_DTYPES, summed_in_half

HALF = (tf.float16, tf.bfloat16)
"""Types for which Horovod rounds each partial sum, or which it does not support."""
EXTREMES = {"Max": hvd.Max, "Min": hvd.Min, "All": hvd.Min, "Any": hvd.Max}


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

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Gathers rows. Workers may have different numbers of rows; some may have none."""
        if tensor.dtype == tf.string:
            lengths, values = texts.as_bytes(tensor)
            values = self.gathered(values, f"{name}_bytes")
            return texts.from_bytes(self.gathered(lengths, name), values)
        given = tf.bitcast(tensor, tf.int16) if tensor.dtype in HALF else tensor
        group = _at_least_two([given])
        whole, *_ = hvd.grouped_allgather(group, name=name, ignore_name_scope=True)
        whole = tf.bitcast(whole, tensor.dtype) if tensor.dtype in HALF else whole
        return tf.ensure_shape(whole, [None, *tensor.shape[1:]])

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Finds an extreme. Truth values travel as integers: Horovod has no extremes of them."""
        given = tf.cast(tensor, tf.int32) if tensor.dtype == tf.bool else tensor
        given = tf.cast(tensor, tf.float32) if tensor.dtype in HALF else given
        found = hvd.allreduce(given, op=EXTREMES[kind], name=name, ignore_name_scope=True)
        return tf.cast(found, tensor.dtype)


def _at_least_two(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a second tensor to a single one.

    Horovod sends a group at once. A single tensor would wait for the end of Horovod's cycle.
    """
    return tensors if len(tensors) > 1 else [*tensors, tf.zeros([1], tensors[0].dtype)]
