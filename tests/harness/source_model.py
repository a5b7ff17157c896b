"""Like `fault_model.py`, with a source that notes each preparation, or with TFRecord files.

Each worker writes a line for each example that it prepares: its epoch (-1 before the first one) and
the index of the example.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras import TFRecordSource
from tests.harness import fault_model
from tests.harness.fault_model import model

__all__ = ["callbacks", "dataset", "model"]

NOTES = "HVD_ELASTIC_TEST_NOTES"
FEATURES = {
    "x": tf.io.FixedLenFeature([8, 8, 1], tf.float32),
    "y": tf.io.FixedLenFeature([], tf.int64),
}


class _Epoch:
    now = -1


class Digits:
    """The arrays of `fault_model.py` as a source. Each example comes with its index."""

    def __init__(self, split: str) -> None:
        self._images, self._labels = fault_model.dataset(split)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Any:
        return {"index": np.int64(index), "x": self._images[index], "y": self._labels[index]}


class EpochMarks(keras.callbacks.Callback):
    """Keeps the number of the present epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """From now on, notes belong to this epoch."""
        _Epoch.now = epoch


def callbacks() -> list[keras.callbacks.Callback]:
    """Returns only the epoch marks."""
    return [EpochMarks()]


def note(index: Any) -> np.int64:
    """Writes a line."""
    with Path(os.environ[NOTES], fault_model.worker_id()).open("a") as file:
        file.write(f"{_Epoch.now} {int(index)}\n")
    return np.int64(0)


def prepare_noted(example: Any) -> Any:
    """Maps an example to (x, y), and notes it."""
    with tf.control_dependencies([tf.numpy_function(note, [example["index"]], tf.int64)]):
        return tf.identity(example["x"]), example["y"]


def parse(record: tf.Tensor) -> Any:
    """Maps a record to (x, y)."""
    example = tf.io.parse_single_example(record, FEATURES)
    return example["x"], example["y"]


def write_records(path: Path) -> None:
    """Writes the training examples of `fault_model.py` to a TFRecord file."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(*fault_model.dataset("train"), strict=True):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=image.ravel())),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def dataset(split: str, data_dir: str) -> Any:
    """Returns records for training if there is a file of them, else the source that notes."""
    if split == "train" and data_dir:
        return TFRecordSource(data_dir), parse
    if split == "train":
        return Digits(split), prepare_noted
    return Digits(split), lambda example: (example["x"], example["y"])
