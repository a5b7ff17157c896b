"""A model whose state, with its optimizer's slots, has about the megabytes asked for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

STATE_MB = "BENCH_STATE_MB"
LAYERS = 8
COPIES = 3
"""Copies of each weight in the state: Adam has two slots."""
STEP_ENDS = "BENCH_STEP_ENDS"
"""The directory in which each process notes the ends of its steps, in its own file."""
EXAMPLES = 4000


def width() -> int:
    """Returns the width of the layers at which the state has the size."""
    weights = float(os.environ[STATE_MB]) * 2**20 / 4 / COPIES
    return max(1, round((weights / LAYERS) ** 0.5))


def model() -> keras.Model:
    """Returns a model of equal layers."""
    network = keras.Sequential([keras.Input((width(),))])
    for _ in range(LAYERS):
        network.add(keras.layers.Dense(width(), activation="tanh"))
    network.compile(optimizer=keras.optimizers.Adam(1e-6), loss="mse")
    return network


def dataset(split: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
    """Returns random numbers: the benchmark is about time, not about learning."""
    if split != "train":
        return None
    x = np.random.default_rng(0).random((EXAMPLES, width()), np.float32)
    return x, x


class StepEnds(keras.callbacks.Callback):
    """Notes the end of each step, in seconds of a clock that all processes share."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the end of a step."""
        with Path(os.environ[STEP_ENDS], str(os.getpid())).open("a") as file:
            file.write(f"{time.monotonic()}\n")


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the clock, if its directory is given."""
    return [StepEnds()] if STEP_ENDS in os.environ else []
