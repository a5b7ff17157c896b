"""A model module for jobs whose batch grows with the workers: it notes who has computed what.

A softmax regression, small enough to be trained again in NumPy (`growing.py`). The last column of
the inputs is the number of the example; it is noted and then dropped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from tests.harness import fault_model, faults, growing


class Witness(fault_model.FaultPoint):
    """Notes which examples this worker computes in which step of a round of which size."""

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Passes all columns on but the last."""
        x = super().call(x, training=training)

        def note(numbers: tf.Tensor) -> None:
            if fault_model._Here.place is not None:
                step = int(fault_model._Here.model.optimizer.iterations.numpy())
                entry = [step, hvd.size(), [int(n) for n in numbers.numpy()]]
                name = f"examples-{fault_model.worker_id()}.jsonl"
                with (Path(os.environ[faults.FILE]).parent / name).open("a") as file:
                    file.write(json.dumps(entry) + "\n")

        if not training:
            return x[:, :-1]
        with tf.control_dependencies([tf.py_function(note, [x[:, -1]], [])]):
            return tf.identity(x[:, :-1])


def model() -> keras.Model:
    """Starts from the weights of `growing.py`."""
    outputs = keras.layers.Dense(3, name="dense")
    network = keras.Sequential([keras.Input((growing.FEATURES + 1,)), Witness(), outputs])
    outputs.set_weights([growing.KERNEL, growing.BIAS])
    network.compile(
        keras.optimizers.SGD(growing.RATE, momentum=growing.MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    fault_model.watch(network)
    return network


def dataset(split: str) -> growing.Arrays:
    """The same examples for validation."""
    return growing.X, growing.LABELS


def callbacks() -> list[keras.callbacks.Callback]:
    """One that reads and sets the learning rate: a scaled one would show in the weights."""
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * growing.DECAY)]
