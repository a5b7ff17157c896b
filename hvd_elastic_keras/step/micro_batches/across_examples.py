"""What is known to look across the examples of a batch: batch normalisation and masked means.

Their results depend on the cut. While a step is traced they are noted; a trial that is to find
other such things, which nobody knows of, leaves them out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.keras_internals.losses import loss as keras_loss
from hvd_elastic_keras.keras_internals.replaced import replaced
from hvd_elastic_keras.step.micro_batches import grouped_batch_norm

BATCH_NORM = "batch norm"
MASK = "mask"
WEIGHTS = "weights"
APART = "batch norm that sees one micro-batch at a time"


class AcrossExamples:
    """Notes what looks across examples.

    Args:
      without: whether to compute without: batch norm over each example alone, masked means as
        sums divided by the number of all values.
      together: number of micro-batches in what is computed, over each of which batch norm
        normalises; None: it is one, and Keras itself normalises.
    """

    def __init__(self, *, without: bool = False, together: tf.Tensor | None = None) -> None:
        self._without = without
        self._together = together
        self.noted: set[str] = set()

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Sees calls for a while."""
        with (
            replaced(keras.layers.BatchNormalization, "call", self._batch_norm),
            replaced(keras_loss, "apply_mask", self._apply_mask),
            replaced(keras_loss, "reduce_values", self._reduce_values),
        ):
            yield

    def _batch_norm(
        self, original: Any, layer: Any, inputs: Any, training: Any = None, mask: Any = None
    ) -> Any:
        if training and layer.trainable:
            self.noted.add(BATCH_NORM)
            if self._without:
                return _normalised_alone(layer, inputs)
            if self._together is not None and grouped_batch_norm.can_group(layer, inputs, mask):
                return grouped_batch_norm.normalised(layer, inputs, self._together)
            self.noted.add(APART)
        return original(layer, inputs, training=training, mask=mask)

    def _apply_mask(
        self, original: Any, sample_weight: Any, mask: Any, dtype: Any, reduction: Any
    ) -> Any:
        if mask is not None and reduction in ("mean", "sum_over_batch_size"):
            self.noted.add(MASK)
            if self._without:
                return original(sample_weight, mask, dtype=dtype, reduction="sum")
        return original(sample_weight, mask, dtype=dtype, reduction=reduction)

    def _reduce_values(
        self,
        original: Any,
        values: Any,
        sample_weight: Any = None,
        reduction: Any = "sum_over_batch_size",
    ) -> Any:
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            self.noted.add(WEIGHTS)
            if self._without:
                reduction = "mean"
        return original(values, sample_weight, reduction)


def _normalised_alone(layer: Any, inputs: Any) -> Any:
    """Batch norm with the statistics of each example; only what depends on one can differ."""
    axis = layer.axis % len(inputs.shape)
    within = [i for i in range(1, len(inputs.shape)) if i != axis]
    if not within:
        return inputs
    values = keras.ops.cast(inputs, "float32")
    mean, variance = keras.ops.moments(values, within, keepdims=True)
    shape = [1] * len(inputs.shape)
    shape[axis] = inputs.shape[axis]
    values = (values - mean) * keras.ops.rsqrt(variance + layer.epsilon)
    if layer.scale:
        values = values * keras.ops.reshape(layer.gamma, shape)
    if layer.center:
        values = values + keras.ops.reshape(layer.beta, shape)
    return keras.ops.cast(values, inputs.dtype)
