"""A user's script: `fit` on batches of a generator. The state of a joiner may come late.

    python late_fit_script.py DIRECTORY

Each worker writes its history and its weights there. Without a launcher, the script is plain Keras.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras import ElasticCallback
from tests.harness import fault_model, late_model

BATCH = 64
WIDTH = 40_000
"""With the values of Adam, the state has 36 MB."""
Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def batches() -> Iterator[Arrays]:
    """Yields the batches of an epoch."""
    x, y = late_model.dataset("train")
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


def main() -> None:
    """Trains, and writes the results."""
    keras.utils.set_random_seed(3)
    layers, callbacks = keras.layers, keras.callbacks
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(WIDTH, activation="tanh"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4, epsilon=1e-3), loss, metrics=["accuracy"])
    shapes = tf.TensorSpec([None, 8, 8, 1]), tf.TensorSpec([None], tf.int64)
    worker = fault_model.worker_id()
    used = [
        callbacks.EarlyStopping("val_loss", patience=1),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        *([] if worker == "alone" else [ElasticCallback(micro_batch_size=16)]),
    ]
    history = model.fit(
        tf.data.Dataset.from_generator(batches, output_signature=shapes),
        epochs=2,
        validation_data=late_model.dataset("validation"),
        callbacks=used,
        verbose=2,
    )
    found = {name: np.array(values) for name, values in history.history.items()}
    weights = {f"weights {i}": value for i, value in enumerate(model.get_weights())}
    np.savez(Path(sys.argv[1], worker), **found, **weights)


if __name__ == "__main__":
    main()
