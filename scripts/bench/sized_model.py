"""A model whose state, with the slots of its optimizer, has about as many MB as asked for."""

from __future__ import annotations

import os

import keras
import numpy as np
import numpy.typing as npt

STATE_MB = "BENCH_STATE_MB"
LAYERS = 8
COPIES = 3
"""Of each weight in the state: Adam has two slots."""
BATCHES = 1000
BATCH_SIZE = 4


def width() -> int:
    """Of the layers, so that the state has the size."""
    weights = float(os.environ[STATE_MB]) * 2**20 / 4 / COPIES
    return max(1, round((weights / LAYERS) ** 0.5))


def model() -> keras.Model:
    """Equal layers."""
    network = keras.Sequential([keras.Input((width(),))])
    for _ in range(LAYERS):
        network.add(keras.layers.Dense(width(), activation="tanh"))
    network.compile(optimizer=keras.optimizers.Adam(1e-6), loss="mse")
    return network


def dataset(split: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
    """Random numbers: the benchmark is about time, not about learning."""
    if split != "train":
        return None
    x = np.random.default_rng(0).random((BATCH_SIZE * BATCHES, width()), np.float32)
    return x, x
