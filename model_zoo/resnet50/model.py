"""ResNet-50: He et al., "Deep Residual Learning for Image Recognition", 2015."""

from __future__ import annotations

import keras
import ml_collections


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Images of `config.image_shape`, values in [0, 1], to `config.num_classes` probabilities.

    Images smaller than `config.model_size` are enlarged first: the network halves its input five
    times and needs 32 pixels.
    """
    inputs = keras.Input(tuple(config.image_shape))
    size = config.model_size
    x = inputs
    if config.image_shape[0] != size:
        x = keras.layers.Resizing(size, size)(x)
    if config.image_shape[-1] == 1:
        x = keras.layers.Concatenate()([x, x, x])
    network = keras.applications.ResNet50(
        weights=None, include_top=False, input_shape=(size, size, 3), pooling="avg"
    )
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            # 0.99 suits long training: after some dozen steps the averages would be useless.
            layer.momentum = config.batch_norm_momentum
    outputs = keras.layers.Dense(config.num_classes, activation="softmax")(network(x))
    return keras.Model(inputs, outputs, name="resnet50")


def loss() -> str:
    """Labels are class numbers."""
    return "sparse_categorical_crossentropy"


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """SGD with momentum, or Adam; the learning rate rises linearly, then falls along a cosine.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017; Loshchilov and Hutter, "SGDR", 2017.
    """
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=config.decay_steps,
        warmup_target=config.learning_rate,
        warmup_steps=config.warmup_steps,
    )
    if config.optimizer == "adam":
        return keras.optimizers.Adam(schedule)
    return keras.optimizers.SGD(
        schedule, momentum=0.9, nesterov=True, weight_decay=config.weight_decay
    )


def metrics() -> list[str]:
    """Share of right answers."""
    return ["accuracy"]
