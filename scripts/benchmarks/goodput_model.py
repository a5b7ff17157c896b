"""The model of the goodput benchmark: a small residual network that notes each step."""

from __future__ import annotations

import keras
import networks
import numpy as np
import numpy.typing as npt
from mlp_model import StepLog

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
BATCH_SIZE = 192


def build() -> keras.Model:
    """Returns the network."""
    return networks.small_resnet()


def model() -> keras.Model:
    """Returns the network, compiled."""
    network = build()
    network.compile(optimizer=keras.optimizers.Adam(1e-3), loss=LOSS)
    return network


def arrays() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Returns random pictures and labels: the benchmark is about time, not about learning."""
    draw = np.random.default_rng(0)
    x = draw.random((BATCH_SIZE * 500, 16, 16, 3), np.float32)
    return x, draw.integers(0, 10, len(x), np.int32)


def dataset(split: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]] | None:
    """Returns an epoch of 500 steps."""
    return arrays() if split == "train" else None


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the step log."""
    return [StepLog()]


if __name__ == "__main__":
    model().fit(*arrays(), batch_size=BATCH_SIZE, epochs=100_000, verbose=0, callbacks=callbacks())
