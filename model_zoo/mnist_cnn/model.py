"""Two convolutions, dropout, one dense layer."""

from __future__ import annotations

import keras
import ml_collections


def model() -> keras.Model:
    """Images [n, 28, 28, 1] in [0, 1] to class probabilities [n, 10]."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ],
        name="mnist_cnn",
    )


def loss() -> str:
    """Labels are class numbers."""
    return "sparse_categorical_crossentropy"


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Adam."""
    return keras.optimizers.Adam(config.learning_rate)


def metrics() -> list[str]:
    """Share of right answers."""
    return ["accuracy"]
