"""Like `fault_model.py`, with more than 50 MB of weights and momenta."""

from __future__ import annotations

import keras

from tests.harness import fault_model
from tests.harness.fault_model import dataset

__all__ = ["dataset", "model"]

WIDTH = 90_000


def model() -> keras.Model:
    """Returns a model in which a few steps change all weights that count."""
    layers = keras.layers
    network = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            fault_model.FaultPoint(),
            layers.Flatten(),
            layers.Dense(WIDTH, activation="tanh"),
            layers.Dense(10),
        ]
    )
    network.compile(
        optimizer=keras.optimizers.SGD(1e-4, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    fault_model.watch(network)
    return network
