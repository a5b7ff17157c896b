"""Like `fault_model.py`, but with a `tf.data.Dataset` and callbacks whose state matters.

The dataset has another order in every epoch and a length that only counting tells. The callbacks
change the learning rate depending on what it is, so that one that runs twice, or starts afresh in
a late joiner, shows in the weights.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.harness import fault_model
from tests.harness.fault_model import model

__all__ = ["callbacks", "dataset", "model"]


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
