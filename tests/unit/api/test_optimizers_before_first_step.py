"""Callbacks see optimizers before the first step as in plain Keras: without slots, unless built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 4)).astype("float32")
Y = RNG.normal(size=(32, 1)).astype("float32")


def model_of(optimizer: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def fit(model: Any, *callbacks: Any, elastic: bool, epochs: int = 2) -> list[float]:
    ours = [ElasticCallback()] if elastic else []
    given = {"batch_size": 8, "epochs": epochs, "shuffle": False, "verbose": 0}
    history = model.fit(X, Y, callbacks=[*callbacks, *ours], **given).history
    return list(history["loss"])


class SavesAndLoads(keras.callbacks.Callback):
    """Keeps the weights of the start, as finders of learning rates do."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.seen = str(path), []

    def _see(self) -> None:
        optimizer = self.model.optimizer
        self.seen.append((optimizer.built, len(optimizer.variables)))

    def on_train_begin(self, logs: Any = None) -> None:
        self._see()
        self.model.save_weights(self.path)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._see()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._see()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._see()

    def on_train_end(self, logs: Any = None) -> None:
        self._see()
        self.model.load_weights(self.path)


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        lambda: keras.optimizers.Adam(0.05),
        lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=2),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
    ],
    ids=["momentum", "adam", "accumulated", "scaled"],
)
def test_weights_of_the_start_do_not_set_back_the_optimizer(make: Any, tmp_path: Path) -> None:
    found = []
    for elastic in (False, True):
        model = model_of(make())
        callback = SavesAndLoads(tmp_path / f"{elastic}.weights.h5")
        losses = fit(model, callback, elastic=elastic)
        state = [np.sum(v) for v in model.optimizer.variables]
        losses += fit(model, SavesAndLoads(callback.path), elastic=elastic)
        found.append((callback.seen, losses, state))
    (plain_seen, plain_losses, plain_state), (seen, losses, state) = found
    assert seen == plain_seen
    assert seen[0][0] is False
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    np.testing.assert_allclose(state, plain_state, rtol=1e-5, atol=1e-6)


def test_a_callback_that_builds_the_optimizer_finds_it_built(tmp_path: Path) -> None:
    class Builds(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            assert not optimizer.built
            optimizer.build(self.model.trainable_variables)
            assert optimizer.built
            assert len(optimizer.variables) == 6
            optimizer.momentums[0].assign(np.full((4, 3), 0.5))

    found = []
    for elastic in (False, True):
        model = model_of(keras.optimizers.SGD(0.05, momentum=0.9))
        losses = fit(model, Builds(), elastic=elastic)
        found.append([*losses, *(np.sum(v) for v in model.optimizer.variables)])
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_backup_and_restore_goes_on_with_the_slots_that_it_has_kept(tmp_path: Path) -> None:
    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    found = []
    for elastic in (False, True):
        directory = tmp_path / str(elastic)
        backup = keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False)
        with pytest.raises(KeyboardInterrupt):
            fit(model_of(keras.optimizers.Adam(0.05)), backup, Stops(), elastic=elastic, epochs=4)
        model = model_of(keras.optimizers.Adam(0.05))
        backup = keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False)
        fit(model, backup, elastic=elastic, epochs=4)
        found.append([int(model.optimizer.iterations), *(np.sum(v) for v in model.weights)])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_model_can_be_exported_after_the_training(tmp_path: Path) -> None:
    model = model_of(keras.optimizers.Adam(0.05))
    fit(model, SavesAndLoads(tmp_path / "start.weights.h5"), elastic=True)
    model.export(tmp_path / "exported", verbose=False)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "kept"))
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
