"""U-Net: Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks ...", 2015."""

from __future__ import annotations

import keras
import ml_collections


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from images of `config.image_shape` in [0, 1] to logits of pixel classes.

    Height and width are multiples of 2 ** (number of `config.filters` - 1). Unlike in the paper,
    convolutions have batch norm, and are padded so that masks have the size of the images.
    """
    layers = keras.layers
    inputs = layers.Input(tuple(config.image_shape))
    x, skipped = inputs, []
    *descending, lowest = config.filters
    for filters in descending:
        x = _two_convolutions(x, filters, config)
        skipped.append(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dropout(config.dropout)(_two_convolutions(x, lowest, config))
    for filters in reversed(descending):
        x = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = layers.Concatenate()([skipped.pop(), x])
        x = _two_convolutions(x, filters, config)
    return keras.Model(inputs, layers.Conv2D(config.num_classes, 1)(x), name="unet")


def _two_convolutions(
    x: keras.KerasTensor, filters: int, config: ml_collections.ConfigDict
) -> keras.KerasTensor:
    for _ in range(2):
        x = keras.layers.Conv2D(
            filters, 3, padding="same", use_bias=False, kernel_initializer="he_normal"
        )(x)
        x = keras.layers.BatchNormalization(momentum=config.batch_norm_momentum)(x)
        x = keras.layers.ReLU()(x)
    return x


def loss() -> keras.losses.Loss:
    """Returns the mean loss over all pixels."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns Adam."""
    return keras.optimizers.Adam(config.learning_rate)


def metrics(config: ml_collections.ConfigDict) -> list[str | keras.metrics.Metric]:
    """Returns the share of right pixels, and the mean intersection over union of the classes."""
    iou = keras.metrics.MeanIoU(config.num_classes, name="mean_iou", sparse_y_pred=False)
    return ["accuracy", iou]
