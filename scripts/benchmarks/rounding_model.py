"""`digits_cnn` with Adam; its state is noted after every step."""

from __future__ import annotations

import os
import time
from typing import Any

import keras
from ml_collections import ConfigDict

from model_zoo import digits_cnn
from tests.harness.recorded_steps import Recorder

ACTIVATION, PACE_S, BIT = "BENCH_ACTIVATION", "BENCH_PACE_S", "BENCH_BIT"
"""The activation; the seconds to sleep after each step, so that replacements join before the end;
whether one weight is changed in its last bit.
"""


class PacedRecorder(Recorder):
    """Notes the state, and sleeps after each step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the state, then sleeps."""
        super().on_train_batch_end(batch, logs)
        time.sleep(float(os.environ.get(PACE_S, "0")))


def _with_activation(layer: keras.layers.Layer) -> keras.layers.Layer:
    if isinstance(layer, keras.layers.ReLU):
        return keras.layers.Activation(os.environ.get(ACTIVATION, "relu"))
    return layer.__class__.from_config(layer.get_config())


def model() -> keras.Model:
    """Returns the compiled model."""
    network = keras.models.clone_model(
        digits_cnn.model(ConfigDict()), clone_function=_with_activation
    )
    network.compile("adam", digits_cnn.loss(), metrics=["accuracy"])
    network.optimizer.learning_rate = 2e-3
    if os.environ.get(BIT):
        kernel = network.trainable_variables[0]
        values = kernel.numpy()
        values.flat[0] *= 1 + 1.2e-7
        kernel.assign(values)
    return network


def dataset(split: str) -> Any:
    """Returns handwritten digits for training."""
    return digits_cnn.dataset(split) if split == "train" else None


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the recorder."""
    return [PacedRecorder()]
