"""Two convolutions, dropout, one dense layer."""

from __future__ import annotations

import keras
import ml_collections

IMAGE_SIZE = 28


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from images of `config.image_shape` in [0, 1] to probabilities [n, 10].

    The model enlarges smaller images to 28x28.
    """
    layers = keras.layers
    enlarge = config.image_shape[0] != IMAGE_SIZE
    return keras.Sequential(
        [
            layers.Input(tuple(config.image_shape)),
            *([layers.Resizing(IMAGE_SIZE, IMAGE_SIZE)] if enlarge else []),
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
    """Returns a loss for labels that are class numbers."""
    return "sparse_categorical_crossentropy"


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns Adam."""
    return keras.optimizers.Adam(config.learning_rate)


def metrics() -> list[str]:
    """Returns the metric: the share of right answers."""
    return ["accuracy"]
