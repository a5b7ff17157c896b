"""The model of the convergence benchmark: a convolutional network on real handwritten digits.

The network has batch norm and dropout, because their results would depend on the number of workers
if anything did. The activations and pooling are smooth, and the optimizer is SGD. A ReLU that
switches at a rounding error, or the quotient of Adam, would let a difference of rounding grow from
step to step. The curves would then show that growth.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras

from model_zoo.digits_cnn import dataset

__all__ = ["callbacks", "dataset", "loss", "metrics", "model", "optimizer"]

STEP_LOG = "BENCH_STEP_LOG"
METRICS = ("loss", "accuracy")


class StepLog(keras.callbacks.Callback):
    """Appends "epoch batch time workers loss accuracy" of each step; only rank 0 does so.

    Keras's logs are means over the epoch so far. The metrics are reset after each step here, so
    that each value belongs to its step alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the beginning of an epoch, for the clock, as a line without a step."""
        self.epoch = epoch
        self._note(-1, dict.fromkeys(METRICS, 0.0))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes a finished step."""
        self._note(batch, logs)
        self.model.reset_metrics()

    def _note(self, batch: int, logs: dict[str, float]) -> None:
        if hvd.rank() == 0:
            values = " ".join(repr(float(logs[name])) for name in METRICS)
            with Path(os.environ[STEP_LOG]).open("a") as file:
                file.write(f"{self.epoch} {batch} {time.time():.4f} {hvd.size()} {values}\n")


def model() -> keras.Model:
    """Returns a network from images [n, 8, 8, 1] to logits [n, 10]."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(48, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.Activation("tanh"),
            layers.Conv2D(96, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.Activation("tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(10),
        ]
    )


def loss() -> keras.Loss:
    """Returns a loss for class numbers as labels."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer() -> keras.Optimizer:
    """Returns SGD with momentum."""
    return keras.optimizers.SGD(5e-3, momentum=0.9)


def metrics() -> list[str]:
    """Returns the accuracy."""
    return ["accuracy"]


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns the step log."""
    return [StepLog()]
