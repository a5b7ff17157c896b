"""The model of the soak: it is convex, so that rounding fades and 1e-5 means something.

In a network with hidden layers, sums in another order may lead anywhere (docs/exactness.md).
Here the loss has one minimum, and any two runs come together there. But one example that is used
twice or left out leads to other weights.
"""

from __future__ import annotations

import os
import time

import keras

from model_zoo import digits

PACE = "SOAK_STEP_S"
"""Seconds to wait after each step, so that faults have some steps between them."""


class Pace(keras.callbacks.Callback):
    """Waits after each step."""

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Waits after a step."""
        time.sleep(float(os.environ.get(PACE, "0")))


def model() -> keras.Model:
    """Returns a logistic regression with weight decay."""
    dense = keras.layers.Dense(10, kernel_regularizer=keras.regularizers.L2(1e-3))
    network = keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), dense])
    network.compile(
        optimizer=keras.optimizers.SGD(0.02, momentum=0.5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network


def dataset(split: str) -> digits.Arrays:
    """Returns 960 digits, 15 steps of 64, and some more for validation."""
    images, labels = digits.load(split)
    size = 960 if split == "train" else 100
    return images[:size], labels[:size]


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the pace."""
    return [Pace()]
