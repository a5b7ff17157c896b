"""Networks of the benchmarks."""

from __future__ import annotations

import keras

layers = keras.layers


def tiny_mlp() -> keras.Model:
    """About 3,000 parameters: nothing but overhead."""
    return keras.Sequential(
        [keras.Input((32,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def small_resnet(width: int = 16) -> keras.Model:
    """A residual network for 16 x 16 images: 3 blocks of 2 convolutions."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(width, 3, padding="same", use_bias=False)(inputs)
    for _ in range(3):
        shortcut = x
        for _ in range(2):
            x = layers.BatchNormalization()(x)
            x = layers.ReLU()(x)
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.Add()([x, shortcut])
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x))
