"""Which rows of a step a worker has, as the graphs of a partitioned step take it."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.step.partition.execution import Part
from hvd_elastic_keras.step.pieces import Pieces

NUMBERS = 6
"""So many are at the beginning of the argument of a graph, see `Place`."""


@dataclasses.dataclass(frozen=True)
class Place:
    """What a worker has of a step, in tensors: scalars, int64, but for the last two.

    Attributes:
      step: number of the step.
      low, size: its rows are [low, low + size) of the batch.
      total: rows of the batch.
      stop: 1 if nobody is to take the step.
      first_piece: number of its first micro-batch.
      digest: of the ids of its rows, in pieces.
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
        """That of the argument of a graph; the digest has so many pieces."""
        end = NUMBERS + pieces
        digest = tf.ensure_shape(numbers[NUMBERS:end], [pieces])
        step, low, size, total, stop, first_piece = tf.unstack(numbers[:NUMBERS], NUMBERS)
        return cls(step, low, size, total, stop, first_piece, digest, numbers[end:])

    @property
    def has_rows(self) -> tf.Tensor:
        """Whether this worker has any."""
        return self.size > 0

    @property
    def part(self) -> Part:
        """As the partition takes it."""
        low, size, total = (tf.cast(n, tf.int32) for n in (self.low, self.size, self.total))
        is_first = tf.logical_and(self.has_rows, tf.equal(low, 0))
        # Without rows, that of the first one, which there is.
        low = tf.where(self.has_rows, low, 0)
        return Part(low, tf.maximum(size, 1), total, is_first, self.has_rows)

    def pieces(self, together: Any) -> Pieces:
        """So many micro-batches, at most, in one piece."""
        bounds = tf.cond(
            self.has_rows,
            lambda: tf.concat([self.offsets[:-1][::together], self.offsets[-1:]], 0),
            lambda: tf.constant([0, 1], tf.int64),
        )
        return Pieces(self.part, tf.cast(bounds, tf.int32), self.step)


def one_row(spec: Any, entries: int = 1) -> Any:
    """A row for where it does not matter which; of ragged and sparse tensors none.

    Args:
      entries: of the tensor, per row; 0: it has no rows.
    """
    if not isinstance(spec, tf.TensorSpec):
        return structure.empty(spec)
    shape = [n or 1 for n in spec.shape]
    return tf.zeros([entries, *shape[1:]] if entries else shape, spec.dtype)


def at_least_one(rows: Any, has_rows: tf.Tensor, entries: int = 1) -> Any:
    """Rows of a batch; if there are none, one that stands for any.

    Args:
      entries: of the tensor, per row; 0: it has no rows, and everybody has all of it.
    """
    if not entries or not isinstance(rows, tf.Tensor):  # everybody has it whole before all else
        return rows
    return tf.cond(
        has_rows,
        lambda: tf.identity(rows),
        lambda: tf.zeros(tf.concat([[entries], tf.shape(rows)[1:]], 0), rows.dtype),
    )
