"""Like `fault_model.py`, but with a `tf.data.Dataset` and callbacks whose state matters.

The dataset has another order in every epoch and a length that only counting tells. The callbacks
change the learning rate depending on what it is, so that one that runs twice, or starts afresh in
a late joiner, shows in the weights. Each worker notes which images it has computed in which step.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import keras
import tensorflow as tf

from tests.harness import fault_model, faults

__all__ = ["callbacks", "dataset", "model"]


@keras.saving.register_keras_serializable("tests")
class Witness(keras.layers.Layer):
    """Passes images on; notes the step, the round, and a checksum of each image."""

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Notes only what is trained in a round."""

        def note(images: tf.Tensor) -> None:
            here = fault_model._Here
            if here.place is not None and here.model is not None:
                step = int(here.model.optimizer.iterations.numpy())
                sums = [zlib.crc32(image.tobytes()) for image in images.numpy()]
                name = f"images-{fault_model.worker_id()}.jsonl"
                with (Path(os.environ[faults.FILE]).parent / name).open("a") as file:
                    file.write(json.dumps([step, here.place.round, sums]) + "\n")

        if not training:
            return x
        with tf.control_dependencies([tf.py_function(note, [x], [])]):
            return tf.identity(x)


def model() -> keras.Model:
    """That of `fault_model.py` behind a witness."""
    inner = fault_model.model()
    network = keras.Sequential([keras.Input((8, 8, 1)), Witness(), *inner.layers])
    network.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    fault_model.watch(network)
    return network


def dataset(split: str, seed: int, epoch: int) -> tf.data.Dataset:
    """The same digits, in the order of (seed, epoch)."""
    examples = tf.data.Dataset.from_tensor_slices(fault_model.dataset(split))
    shuffled = examples.shuffle(100, seed=seed + epoch, reshuffle_each_iteration=False)
    return shuffled.filter(lambda image, label: label < 9)


def callbacks() -> list[keras.callbacks.Callback]:
    """A decaying learning rate, halved on each "plateau" too."""
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
    ]
