"""Where a micro-batch, or several that are computed in one pass, lie in the batch of their step."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where what is computed in one pass lies. All are scalars, int64.

    Attributes:
      step: a number of its own for each step.
      index: of the (first) micro-batch within the step.
      low: its first example, counted from the front of the batch of the step.
      size: number of examples.
      total: examples of the step.
      together: number of micro-batches. All have the same size where that makes a difference.
    """

    step: Any
    index: Any
    low: Any
    size: Any
    total: Any
    together: Any = 1

    @property
    def numbers(self) -> list[Any]:
        """All fields, in their order."""
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    @property
    def weight(self) -> tf.Tensor:
        """Its part of the step, float32."""
        return tf.cast(self.size, tf.float32) / tf.cast(self.total, tf.float32)
