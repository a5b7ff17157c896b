"""The sums over the micro-batches that a worker computes, as variables of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensors = list[tf.Tensor]
LARGE_BYTES = 2**18
"""A sum of at least this size is worth two more operations in each turn of the loop."""


class RunningSums:
    """Adds up the results of micro-batches in a loop.

    A large sum begins as an empty tensor, and the first micro-batch's result replaces it. Otherwise
    zeros of the size of all gradients would have to be made, held and read in each step, mostly for
    a single pass.

    Args:
      specs: specs of the results, with static shapes. Empty: nothing is known of the results
        before the first micro-batch, as in an eager run.
      count: number of micro-batches, int32 of shape []; 0 for a worker without a share.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], count: Any) -> None:
        self._specs = specs
        self._is_large = [_num_bytes(spec) >= LARGE_BYTES for spec in specs]
        self._count = count

    def start(self) -> Tensors:
        """Returns the sums before the first micro-batch."""
        is_zero = tf.cast(tf.equal(self._count, 0), tf.int32)
        pairs = zip(self._specs, self._is_large, strict=True)
        return [
            tf.zeros(is_zero * spec.shape if large else spec.shape, spec.dtype)
            for spec, large in pairs
        ]

    def shapes(self) -> list[tf.TensorShape]:
        """Returns the shapes of the sums, as far as they are known in the loop."""
        pairs = zip(self._specs, self._is_large, strict=True)
        return [tf.TensorShape([None] * s.shape.rank if large else s.shape) for s, large in pairs]

    def add(self, i: Any, sums: Sequence[tf.Tensor], results: Sequence[tf.Tensor]) -> Tensors:
        """Returns the sums after one more micro-batch.

        Args:
          i: number of micro-batches before it.
        """
        if not self._specs:  # run eagerly: nothing is known before the first one
            return [s + r for s, r in zip(sums, results, strict=True)] if sums else list(results)
        is_first = tf.equal(i, 0)
        return [
            _first_or_sum(is_first, s, r) if large else s + r
            for large, s, r in zip(self._is_large, sums, results, strict=True)
        ]

    def end(self, sums: Sequence[tf.Tensor]) -> Tensors:
        """Returns the sums after the last micro-batch, with static shapes."""
        if not self._specs:
            return list(sums)
        return [tf.ensure_shape(s, spec.shape) for s, spec in zip(sums, self._specs, strict=True)]


def _first_or_sum(is_first: tf.Tensor, before: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    return tf.cond(is_first, lambda: result, lambda: tf.ensure_shape(before, result.shape) + result)


def _num_bytes(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements()) * int(spec.dtype.size)
