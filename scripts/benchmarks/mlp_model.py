"""The model of the recovery benchmark, a small MLP, and a callback that notes each step."""

from __future__ import annotations

import os
import time
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import numpy.typing as npt
from step_log import STEP_LOG


class StepLog(keras.callbacks.Callback):
    """Appends "time workers step" after each step; the time is the machine's monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self._file = (Path(os.environ[STEP_LOG]) / f"{os.getpid()}").open("a", buffering=1)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Notes a finished step."""
        workers = hvd.size() if hvd.is_initialized() else 1
        step = int(self.model.optimizer.iterations.numpy())
        self._file.write(f"{time.monotonic():.4f} {workers} {step}\n")


LOSS = "mse"
BATCH_SIZE = 96


def build() -> keras.Model:
    """Returns a network of 64 → 256 → 256 → 1, as in the prototype whose numbers are compared."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((64,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(1),
        ]
    )


def model() -> keras.Model:
    """Returns the MLP, compiled."""
    network = build()
    network.compile(optimizer=keras.optimizers.Adam(1e-3), loss=LOSS)
    return network


def arrays() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Returns random inputs and their sums: the benchmark is about time, not about learning."""
    x = np.random.RandomState(0).normal(size=(96_000, 64)).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)


def dataset(split: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
    """Returns an epoch of 1,000 steps of 96."""
    return arrays() if split == "train" else None


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the step log."""
    return [StepLog()]
