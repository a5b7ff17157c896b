"""Like `fault_model.py`, but with a `tf.data.Dataset` and callbacks whose state matters.

The dataset has another order in every epoch. Its length is known only by counting. The callbacks
compute the new learning rate from the present one. A callback that runs twice, or starts afresh in
a late joiner, therefore shows in the weights. Each worker notes which images it has computed in
which step.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness import fault_model, faults

__all__ = ["callbacks", "dataset", "model"]


def note(batch: Any, step: int) -> None:
    """Notes the step, the round, and a checksum of each image."""
    place = fault_model._Here.place
    assert place is not None
    sums = [zlib.crc32(image.tobytes()) for image in np.asarray(batch[0])]
    name = f"images-{fault_model.worker_id()}.jsonl"
    with (Path(os.environ[faults.FILE]).parent / name).open("a") as file:
        file.write(json.dumps([step, place.round, sums]) + "\n")


def model() -> keras.Model:
    """Returns the model of `fault_model.py`, with a witness."""
    if faults.FILE in os.environ:
        fault_model._Here.witness = note
    return fault_model.model()


def dataset(split: str, seed: int, epoch: int) -> tf.data.Dataset:
    """Returns the digits below 9, in an order that depends on (seed, epoch)."""
    examples = tf.data.Dataset.from_tensor_slices(fault_model.dataset(split))
    shuffled = examples.shuffle(100, seed=seed + epoch, reshuffle_each_iteration=False)
    return shuffled.filter(lambda image, label: label < 9)


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns callbacks: the learning rate decays, and is also halved on each "plateau"."""
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
    ]
