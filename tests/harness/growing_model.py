"""A model module for jobs whose batch grows with the workers; it notes which worker computed what.

The model is a softmax regression, small enough to be trained again in NumPy (`growing.py`). The
last column of the inputs is the number of the example. It is noted and then dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from tests.harness import fault_model, faults, growing


class WithoutNumbers(fault_model.FaultPoint):
    """Drops the numbers of the examples."""

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Passes on all columns except the last."""
        return super().call(x, training=training)[:, :-1]


def note(batch: Any, step: int) -> None:
    """Notes the examples of a step."""
    entry = [step, hvd.size(), [int(row[-1]) for row in np.asarray(batch[0])]]
    name = f"examples-{fault_model.worker_id()}.jsonl"
    with (Path(os.environ[faults.FILE]).parent / name).open("a") as file:
        file.write(json.dumps(entry) + "\n")


def model() -> keras.Model:
    """Returns a model that starts from the weights of `growing.py`."""
    if faults.FILE in os.environ:
        fault_model._Here.witness = note
    outputs = keras.layers.Dense(3, name="dense")
    network = keras.Sequential([keras.Input((growing.FEATURES + 1,)), WithoutNumbers(), outputs])
    outputs.set_weights([growing.KERNEL, growing.BIAS])
    network.compile(
        keras.optimizers.SGD(growing.RATE, momentum=growing.MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    fault_model.watch(network)
    return network


def dataset(split: str) -> growing.Arrays:
    """Returns the same examples for training and validation."""
    return growing.X, growing.LABELS


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns one that reads and sets the learning rate; a scaled rate would change the weights."""
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * growing.DECAY)]
