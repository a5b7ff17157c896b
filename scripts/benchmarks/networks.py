"""Networks of the benchmarks."""

from __future__ import annotations

import keras

layers = keras.layers
TABLE_ROWS = 500_000
"""Of the table of `embedding`."""


def tiny_mlp() -> keras.Model:
    """Returns a network of about 3,000 parameters: nothing but overhead."""
    return keras.Sequential(
        [keras.Input((32,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def large_mlp() -> keras.Model:
    """Returns a network of about 5 million parameters."""
    hidden = [layers.Dense(size, activation="relu") for size in (1536, 1536, 1280)]
    return keras.Sequential([keras.Input((512,)), *hidden, layers.Dense(10)])


def wide_mlp() -> keras.Model:
    """Returns a network of a million parameters, whose sums have 4 MB."""
    return keras.Sequential(
        [
            keras.Input((256,)),
            layers.Dense(1024, activation="relu"),
            layers.Dense(700, activation="relu"),
            layers.Dense(10),
        ]
    )


def embedding() -> keras.Model:
    """Returns a network of a table of 64 MB, of which an example uses 80 rows."""
    return keras.Sequential(
        [
            keras.Input((80,), dtype="int32"),
            layers.Embedding(TABLE_ROWS, 32),
            layers.GlobalAveragePooling1D(),
            layers.Dense(10),
        ]
    )


def small_resnet(width: int = 16) -> keras.Model:
    """Returns a residual network for 16 x 16 images: 3 blocks of 2 convolutions."""
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


def dropout_net() -> keras.Model:
    """Returns a network of two convolutions, batch norm and dropout."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    x = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    x = layers.Conv2D(32, 3, padding="same")(layers.Dropout(0.3)(x))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return keras.Model(inputs, layers.Dense(10)(layers.Dropout(0.5)(x)))


def transformer() -> keras.Model:
    """Returns a network of two blocks over 32 vectors of 16 numbers, with dropout."""
    inputs = keras.Input((32, 16))
    x = layers.Dense(64)(inputs)
    for _ in range(2):
        attention = layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + attention)
        hidden = layers.Dense(64)(layers.Dense(128, activation="gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(hidden))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def depthwise_net() -> keras.Model:
    """Returns a network of depthwise and pointwise convolutions with batch norm."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, strides=2, padding="same")(inputs)
    for _ in range(3):
        x = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(x))
        x = layers.Conv2D(32, 1)(layers.ReLU()(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def recurrent_net() -> keras.Model:
    """Returns an LSTM over 24 vectors."""
    inputs = keras.Input((24, 8))
    return keras.Model(inputs, layers.Dense(10)(layers.LSTM(32)(inputs)))
