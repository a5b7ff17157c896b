"""Two convolutions with batch normalisation, dropout, one dense layer."""

from __future__ import annotations

import keras
import ml_collections


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from images [n, 8, 8, 1] to class probabilities [n, 10]."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(config.get("dropout", 0.25)),
            layers.Dense(10, activation="softmax"),
        ],
        name="digits_cnn",
    )


def loss() -> str:
    """Returns a loss for labels that are class numbers."""
    return "sparse_categorical_crossentropy"


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns Adam."""
    return keras.optimizers.Adam(config.get("learning_rate", 2e-3))


def metrics() -> list[str]:
    """Returns the metric: the share of right answers."""
    return ["accuracy"]
