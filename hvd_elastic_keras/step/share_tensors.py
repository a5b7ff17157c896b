"""What a worker computes of a step, as the graph of a step takes it."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from hvd_elastic_keras.step.micro_batches.traced import Tensors


@dataclasses.dataclass(frozen=True)
class ShareTensors:
    """One worker's part of one step, in tensors.

    Attributes:
      data: leaves of the batch, [examples, …] each.
      offsets: shape [micro-batches + 1], where each begins and the last one ends.
      step: number of the step, different for all steps.
      first_index: number of its first micro-batch within the step.
      first_example: position of its first example in the batch of the step.
      num_examples: of the whole step, float32.
      began: when the worker could begin it, in seconds, float64; only where speeds are measured.
      digest: shape [0], or [PIECES] where steps are audited.
    """

    data: Tensors
    offsets: tf.Tensor
    step: tf.Tensor
    first_index: tf.Tensor
    first_example: tf.Tensor
    num_examples: tf.Tensor
    digest: tf.Tensor
    began: tf.Tensor | None = None

    @property
    def count(self) -> tf.Tensor:
        """Number of micro-batches."""
        return tf.size(self.offsets) - 1
