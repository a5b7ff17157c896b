"""ResNet-20 for small images: He et al., "Deep Residual Learning", 2015, section 4.2."""

from __future__ import annotations

import keras
import ml_collections

from model_zoo import augmentation

FILTERS = (16, 32, 64)


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from images to `config.num_classes` logits.

    Images have `config.image_shape` and values in [0, 1]. With n = `config.blocks_per_stage`, the
    model has 6n + 2 layers: 20 with n = 3, 56 with n = 9.

    In training, images are shifted by up to `config.max_shift` pixels (with a black border) and,
    with `config.flip`, mirrored. Layers of the model do this. Therefore every epoch draws new
    values, and a worker that joins late draws the same values as the others.
    """
    layers = keras.layers
    inputs = keras.Input(tuple(config.image_shape))
    x = augmentation.shifted(inputs, config.max_shift, config.flip)
    size = config.model_size
    if config.image_shape[0] != size:
        x = layers.Resizing(size, size)(x)
    x = layers.Normalization(mean=config.pixel_mean, variance=[std**2 for std in config.pixel_std])(
        x
    )
    x = layers.ReLU()(_convolution(x, FILTERS[0], 1, config))
    for stage, filters in enumerate(FILTERS):
        for block in range(config.blocks_per_stage):
            x = _block(x, filters, 2 if stage > 0 and block == 0 else 1, config)
    outputs = layers.Dense(config.num_classes)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs, name="resnet20")


def _convolution(
    x: keras.KerasTensor, filters: int, strides: int, config: ml_collections.ConfigDict
) -> keras.KerasTensor:
    """Applies a 3x3 convolution and batch norm."""
    x = keras.layers.Conv2D(
        filters,
        3,
        strides=strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)
    return keras.layers.BatchNormalization(momentum=config.batch_norm_momentum)(x)


def _block(
    x: keras.KerasTensor, filters: int, strides: int, config: ml_collections.ConfigDict
) -> keras.KerasTensor:
    """Applies two convolutions and adds a shortcut without weights ("option A" of the paper)."""
    shortcut = x
    if strides > 1:
        shortcut = keras.layers.AveragePooling2D(1, strides)(shortcut)  # every second pixel
        missing = filters - shortcut.shape[-1]
        shortcut = keras.ops.pad(shortcut, ((0, 0), (0, 0), (0, 0), (0, missing)))
    x = keras.layers.ReLU()(_convolution(x, filters, strides, config))
    x = _convolution(x, filters, 1, config)
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))


def loss() -> keras.losses.Loss:
    """Returns a loss for labels that are class numbers and a model that gives logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns SGD with momentum.

    The learning rate falls to a tenth at each of `config.decay_steps`.
    """
    rates = [config.learning_rate * 0.1**i for i in range(len(config.decay_steps) + 1)]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(list(config.decay_steps), rates)
    return keras.optimizers.SGD(schedule, momentum=0.9, weight_decay=config.weight_decay)


def metrics() -> list[str]:
    """Returns the metric: the share of right answers."""
    return ["accuracy"]
