"""ResNet-50: He et al., "Deep Residual Learning for Image Recognition", 2015."""

from __future__ import annotations

from typing import Any

import keras
import ml_collections

from model_zoo import augmentation


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from images to `config.num_classes` probabilities.

    Images have `config.image_shape` and values in [0, 1]. Images smaller than `config.model_size`
    are enlarged first: the network halves its input five times and needs 32 pixels.
    `config.augmentation` changes images in training: "shift" shifts and mirrors them, "crop" takes
    a random part of each and mirrors it.
    """
    inputs = keras.Input(tuple(config.image_shape))
    size = config.model_size
    x = _augmented(inputs, config)
    if x.shape[1] != size:
        x = keras.layers.Resizing(size, size)(x)
    if config.image_shape[-1] == 1:
        x = keras.layers.Concatenate()([x, x, x])
    if "pixel_mean" in config:
        variance = [std**2 for std in config.pixel_std]
        x = keras.layers.Normalization(mean=config.pixel_mean, variance=variance)(x)
    network = keras.applications.ResNet50(
        weights=None, include_top=False, input_shape=(size, size, 3), pooling="avg"
    )
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            # 0.99 only suits long training: the averages would be useless after a few dozen steps.
            layer.momentum = config.batch_norm_momentum
    outputs = keras.layers.Dense(config.num_classes, activation="softmax")(network(x))
    return keras.Model(inputs, outputs, name="resnet50")


def _augmented(x: keras.KerasTensor, config: ml_collections.ConfigDict) -> keras.KerasTensor:
    if config.augmentation == "shift":
        return augmentation.shifted(x, config.max_shift, mirror=True)
    if config.augmentation == "crop":
        x = augmentation.RandomResizedCrop(config.model_size)(x)
        return keras.layers.RandomFlip("horizontal")(x)
    return x


def loss(config: ml_collections.ConfigDict) -> Any:
    """Returns a loss for labels that are class numbers.

    `config.label_smoothing` gives a part of each label to all classes: Szegedy et al., "Rethinking
    the Inception Architecture", 2016, section 7.
    """
    if not config.label_smoothing:
        return "sparse_categorical_crossentropy"

    def smoothed_crossentropy(labels: Any, probabilities: Any) -> Any:
        one_hot = keras.ops.one_hot(
            keras.ops.reshape(labels, (-1,)), config.num_classes, dtype=probabilities.dtype
        )
        return keras.losses.categorical_crossentropy(
            one_hot, probabilities, label_smoothing=config.label_smoothing
        )

    return smoothed_crossentropy


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns SGD with momentum, or Adam.

    The learning rate rises linearly, and then falls along a cosine: Goyal et al., "Accurate, Large
    Minibatch SGD", 2017; Loshchilov and Hutter, "SGDR", 2017.
    """
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=config.decay_steps,
        warmup_target=config.learning_rate,
        warmup_steps=config.warmup_steps,
    )
    if config.optimizer == "adam":
        return keras.optimizers.Adam(schedule)
    sgd = keras.optimizers.SGD(
        schedule, momentum=0.9, nesterov=True, weight_decay=config.weight_decay
    )
    if config.weight_decay:
        sgd.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return sgd


def metrics() -> list[str]:
    """Returns the metric: the share of right answers."""
    return ["accuracy"]
