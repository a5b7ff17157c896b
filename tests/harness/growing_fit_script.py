"""A user's script whose `fit` has a batch that grows with the workers: `OUTPUT KIND`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras import ElasticCallback
from tests.harness import fault_model, growing, growing_model

BATCH, WARM_UP, EPOCHS = 16, 6, 4


class Batches(keras.utils.PyDataset):
    """Batches of the data, of which the last one is smaller."""

    @property
    def num_batches(self) -> int:
        """13."""
        return -(-growing.SIZE // BATCH)

    def __getitem__(self, index: int) -> growing.Arrays:
        """Returns one batch."""
        part = slice(index * BATCH, (index + 1) * BATCH)
        return growing.X[part], growing.LABELS[part]


def data(kind: str) -> dict[str, Any]:
    """Returns the data arguments for `fit`."""
    if kind == "arrays":
        return {"x": growing.X, "y": growing.LABELS, "batch_size": BATCH}
    if kind == "PyDataset":
        return {"x": Batches(), "shuffle": False}
    shuffled = tf.data.Dataset.from_tensor_slices((growing.X, growing.LABELS)).shuffle(50, seed=1)
    return {"x": shuffled.filter(lambda x, y: y >= 0).batch(BATCH)}


if __name__ == "__main__":
    output, kind = sys.argv[1:]
    keras.utils.set_random_seed(1)
    model = growing_model.model()
    ours = ElasticCallback(batch="per_worker", lr_warm_up_steps=WARM_UP, micro_batch_size=5)
    callbacks = [ours, *growing_model.callbacks()]
    history = model.fit(**data(kind), epochs=EPOCHS, callbacks=callbacks, verbose=2)
    weights = dict(zip(("kernel", "bias"), model.get_weights(), strict=True))
    path = Path(output) / f"{fault_model.worker_id()}.npz"
    np.savez(path, rates=history.history["learning_rate"], **weights)
