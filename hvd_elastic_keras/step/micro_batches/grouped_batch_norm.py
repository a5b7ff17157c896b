"""Batch normalisation of several micro-batches in one pass, each with its own mean and variance."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def can_group(layer: keras.layers.BatchNormalization, inputs: Any, mask: Any) -> bool:
    """Whether `normalised` does what the layer does."""
    examples_first = layer.axis % len(inputs.shape) != 0
    return bool(examples_first and mask is None and not (layer.renorm or layer.synchronized))


def normalised(
    layer: keras.layers.BatchNormalization, inputs: tf.Tensor, together: tf.Tensor
) -> tf.Tensor:
    """As `BatchNormalization.call` with `training=True` on each micro-batch by itself.

    The moving averages move by the mean of what each micro-batch would move them by.

    Args:
      inputs: shape [examples, …]; the examples of the first micro-batch come first.
      together: number of micro-batches, all of the same size.
    """
    # As Keras: half precision overflows here.
    values = keras.ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    shape = tf.shape(values)
    together = tf.cast(together, tf.int32)
    grouped = tf.reshape(values, tf.concat([[together, shape[0] // together], shape[1:]], 0))
    grouped = tf.ensure_shape(grouped, [None, None, *inputs.shape[1:]])
    axis = layer.axis % len(inputs.shape) + 1
    within = [i for i in range(1, len(grouped.shape)) if i != axis]
    mean, variance = keras.ops.moments(grouped, within, keepdims=True)
    for average, found in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        moved = tf.reshape(tf.reduce_mean(found, 0), average.shape)
        average.assign(
            keras.ops.cast(average, values.dtype) * layer.momentum + moved * (1.0 - layer.momentum)
        )
    weights = [1] * len(grouped.shape)
    weights[axis] = inputs.shape[layer.axis]
    beta, gamma = (
        None if weight is None else tf.reshape(keras.ops.cast(weight, values.dtype), weights)
        for weight in (layer.beta, layer.gamma)
    )
    outputs = tf.nn.batch_normalization(grouped, mean, variance, beta, gamma, layer.epsilon)
    outputs = tf.ensure_shape(tf.reshape(outputs, shape), inputs.shape)
    return keras.ops.cast(outputs, layer.compute_dtype)
