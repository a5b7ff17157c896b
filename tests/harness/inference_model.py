"""A model module that is not compiled, for jobs that evaluate or predict.

The first feature of example n is n. A layer notes the computed examples in the directory of the
test's faults, and lets faults happen there.
"""

from __future__ import annotations

import os
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from tests.harness import faults

SIZE, FEATURES, CLASSES = 1000, 6, 3
COMPUTED = "computed.txt"
POINT = "infer"


@keras.saving.register_keras_serializable("tests")
class KnowsItsPlace(keras.layers.Layer):
    """Passes its input on; on the way it notes the first example, and a fault may happen."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        def note(first: tf.Tensor) -> None:
            # Note only in a round, not in the check or while a worker warms up.
            if hvd.is_initialized() and hvd.size() > 1:
                faults.happen(POINT, hvd.rank(), hvd.size(), step=int(first))
                with (Path(os.environ[faults.FILE]).parent / COMPUTED).open("a") as file:
                    file.write(f"{int(first)}\n")

        # In the last step of an evaluation, a worker may have no example.
        first = tf.cond(tf.size(x) > 0, lambda: x[0, 0], lambda: -1.0)
        with tf.control_dependencies([tf.py_function(note, [first], [])]):
            return tf.identity(x)


def computed(directory: Path) -> list[int]:
    """Returns the first example of each range that workers have computed."""
    return [int(line) for line in (directory / COMPUTED).read_text().splitlines()]


def examples() -> np.ndarray:
    """Returns the examples, of shape [SIZE, FEATURES]."""
    x = np.random.default_rng(5).normal(size=(SIZE, FEATURES)).astype("float32")
    x[:, 0] = np.arange(SIZE)
    return x


def scores(x: keras.KerasTensor) -> keras.KerasTensor:
    """Returns scores by a network with batch normalisation and dropout.

    An evaluation must use the first and not the second.

    Shape [examples, CLASSES].
    """
    x = keras.layers.BatchNormalization(momentum=0.9)(KnowsItsPlace()(x))
    x = keras.layers.Dropout(0.5)(keras.layers.Dense(8, activation="relu")(x))
    return keras.layers.Dense(CLASSES, activation="softmax")(x)


def model() -> keras.Model:
    """Returns a model with one output."""
    inputs = keras.Input((FEATURES,))
    return keras.Model(inputs, scores(inputs))


def loss() -> str:
    """Returns the loss for an evaluation."""
    return "sparse_categorical_crossentropy"


def metrics() -> list[str]:
    """Returns the metrics for an evaluation."""
    return ["accuracy"]


def dataset(split: str) -> object:
    """Returns the examples; for predictions without labels. None for other splits."""
    x = examples()
    if split == "predict":
        return x
    return (x, (x[:, 1] > 0).astype("int64")) if split in ("train", "validation") else None
