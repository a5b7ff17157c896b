"""A worker's rows of a step, in the form in which the graphs of a partitioned step take them."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.step.partition.part import Part
from hvd_elastic_keras.step.pieces import Pieces

NUMBERS = 6
"""Numbers at the beginning of a graph's argument, before the digest; see `Place`."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A worker's rows and micro-batches of a step, as int64 tensors.

    All tensors but the last two are scalars.

    Attributes:
      step: number of the step.
      low, size: the worker has the rows [low, low + size) of the batch.
      total: rows of the batch.
      stop: 1 if no worker may take the step.
      first_piece: number of its first micro-batch.
      digest: digest of the ids of its rows, in pieces.
      offsets: where its micro-batches begin within its rows, and where the last one ends.
    """

    step: tf.Tensor
    low: tf.Tensor
    size: tf.Tensor
    total: tf.Tensor
    stop: tf.Tensor
    first_piece: tf.Tensor
    digest: tf.Tensor
    offsets: tf.Tensor

    @classmethod
    def of(cls, numbers: tf.Tensor, pieces: int) -> Place:
        """Returns the place that the argument of a graph describes.

        Args:
          numbers: the argument.
          pieces: number of pieces of the digest.
        """
        end = NUMBERS + pieces
        digest = tf.ensure_shape(numbers[NUMBERS:end], [pieces])
        step, low, size, total, stop, first_piece = tf.unstack(numbers[:NUMBERS], NUMBERS)
        return cls(step, low, size, total, stop, first_piece, digest, numbers[end:])

    @property
    def has_rows(self) -> tf.Tensor:
        """Whether this worker has any rows."""
        return self.size > 0

    @property
    def part(self) -> Part:
        """The rows of this worker, as `partition/` takes them."""
        low, size, total = (tf.cast(n, tf.int32) for n in (self.low, self.size, self.total))
        is_first = tf.logical_and(self.has_rows, tf.equal(low, 0))
        # A worker without rows takes the first row, which always exists.
        low = tf.where(self.has_rows, low, 0)
        return Part(low, tf.maximum(size, 1), total, is_first, self.has_rows)

    def pieces(self, together: Any) -> Pieces:
        """Returns the rows in pieces of at most `together` micro-batches."""
        bounds = tf.cond(
            self.has_rows,
            lambda: tf.concat([self.offsets[:-1][::together], self.offsets[-1:]], 0),
            lambda: tf.constant([0, 1], tf.int64),
        )
        return Pieces(self.part, tf.cast(bounds, tf.int32), self.step)


def one_row(spec: Any, entries: int = 1) -> Any:
    """Returns one row of zeros, for use where any row will do.

    Returns no rows of ragged and sparse tensors.

    Args:
      entries: entries of the tensor per row; 0: the tensor has no rows.
    """
    if not isinstance(spec, tf.TensorSpec):
        return structure.empty(spec)
    shape = [n or 1 for n in spec.shape]
    return tf.zeros([entries, *shape[1:]] if entries else shape, spec.dtype)


def at_least_one(rows: Any, has_rows: tf.Tensor, entries: int = 1) -> Any:
    """Returns the rows of a worker; if there are none, one row of zeros.

    Args:
      entries: entries of the tensor per row; 0: the tensor has no rows, and each worker has all
        of it.
    """
    if not entries or not isinstance(rows, tf.Tensor):  # each worker gets all of it first
        return rows
    return tf.cond(
        has_rows,
        lambda: tf.identity(rows),
        lambda: tf.zeros(tf.concat([[entries], tf.shape(rows)[1:]], 0), rows.dtype),
    )
