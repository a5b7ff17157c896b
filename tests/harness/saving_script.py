"""A user's script that saves in every way, at every place: `saving_script.py DIRECTORY`.

Each time a model is really written, a line with worker and moment is appended to
`DIRECTORY/written.txt`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from keras.models import save_model as save_with_another_name

import hvd_elastic_keras
from hvd_elastic_keras import ElasticCallback
from tests.harness import faults

WORKER = os.environ.get("HVD_ELASTIC_WORKER_ID", "alone")
DIRECTORY = Path(sys.argv[1])
X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")


class Now:
    """The present moment in the script."""

    moment = "before"


@keras.saving.register_keras_serializable("tests")
class Watched(keras.layers.Dense):
    """Records that it is saved; a fault may happen on the way."""

    def save_own_variables(self, store: Any) -> None:
        with (DIRECTORY / "written.txt").open("a") as file:
            file.write(f"{WORKER} {Now.moment}\n")
        super().save_own_variables(store)
        if hvd.is_initialized() and hvd.size() > 1:
            faults.happen(f"saving {Now.moment}", hvd.rank(), hvd.size())


def weights_are_those_of(path: Path, model: keras.Model) -> None:
    """Fails unless the file is whole and new."""
    if path.suffix == ".keras":
        found = keras.saving.load_model(path).get_weights()
    else:
        other = make()
        other.load_weights(path)
        found = other.get_weights()
    for a, b in zip(found, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


class Saves(keras.callbacks.Callback):
    """A callback of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=model), str(DIRECTORY / "managed"), max_to_keep=2
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        saved = Path(self.manager.save())
        names = [Path(path).name for path in self.manager.checkpoints]
        assert names[-2:] == [f"ckpt-{n}" for n in (epoch, epoch + 1) if n], names
        assert saved.name == f"ckpt-{epoch + 1}", saved
        other = make()
        tf.train.Checkpoint(model=other).read(str(saved)).expect_partial()
        for a, b in zip(other.get_weights(), self.model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        Now.moment = f"epoch{epoch}"
        self.model.save(DIRECTORY / "last.keras")
        weights_are_those_of(DIRECTORY / "last.keras", self.model)
        Now.moment = "training"


def make() -> keras.Model:
    """Returns a model that can be saved."""
    model = keras.Sequential([keras.Input((6,)), Watched(3), keras.layers.Dense(6)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fit(epochs: int, *callbacks: keras.callbacks.Callback) -> Any:
    """Trains once."""
    ours = ElasticCallback(micro_batch_size=4)
    return model.fit(X, X, batch_size=16, epochs=epochs, callbacks=[ours, *callbacks])


keras.utils.set_random_seed(1)
print("this script begins")
model = make()
model.save(DIRECTORY / "untrained.keras")
checkpoint = keras.callbacks.ModelCheckpoint(DIRECTORY / "best.weights.h5", save_weights_only=True)
fit(3, Saves(), checkpoint)
Now.moment = "after"
model.save(DIRECTORY / "model.keras")
weights_are_those_of(DIRECTORY / "model.keras", model)
model.save_weights(DIRECTORY / "weights.weights.h5", overwrite=True)
weights_are_those_of(DIRECTORY / "weights.weights.h5", model)
Now.moment = "named"
save_with_another_name(model, DIRECTORY / "named.keras")
Now.moment = "exported"
model.export(DIRECTORY / "exported", verbose=False)
assert keras.layers.TFSMLayer(DIRECTORY / "exported", call_endpoint="serve") is not None
Now.moment = "own"
model.save(DIRECTORY / f"own-{WORKER}.keras")
weights_are_those_of(DIRECTORY / f"own-{WORKER}.keras", model)
with hvd_elastic_keras.root_only() as root:
    if root:
        with (DIRECTORY / "block.txt").open("a") as file:
            file.write(f"begun by {WORKER}\n")
        if hvd_elastic_keras.is_root():
            faults.happen("block", 0, 0)
        np.save(DIRECTORY / "array.npy", np.arange(5))
        with (DIRECTORY / "block.txt").open("a") as file:
            file.write(f"ended by {WORKER}\n")
assert np.load(DIRECTORY / "array.npy").tolist() == list(range(5))
print("between two trainings")
Now.moment = "training"
fit(2)
Now.moment = "end"
model.save(DIRECTORY / "model.keras")
weights_are_those_of(DIRECTORY / "model.keras", model)
print("this script ends")
