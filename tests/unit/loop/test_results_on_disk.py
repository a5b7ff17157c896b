"""A finished training is not lost because a file of results cannot be written."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras
import tensorflow as tf

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.loop.kept_on_disk import save_model
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions

X = np.arange(16, dtype="float32").reshape(8, 2)


class Unsavable(keras.layers.Dense):
    """A layer whose weights cannot be saved at all."""

    def save_own_variables(self, store: Any) -> None:
        raise RuntimeError("this layer\nkeeps its weights to itself\n\nand gives advice")


class Describes(keras.callbacks.Callback):
    """Adds a value to the logs that is not a number."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["kind"] = {"name", "of"}.__class__


def train(
    layer: keras.layers.Layer,
    job_dir: Path,
    epochs: int,
    kind: type[keras.Model] = keras.Sequential,
) -> list[float]:
    model = kind([keras.Input((2,)), layer])
    model.compile("sgd", "mse")
    config = TrainingConfig(global_batch_size=4, micro_batch_size=2, epochs=epochs)
    trainer = Trainer(model, (X, X), config=config, job_dir=job_dir)
    return list(trainer.fit().history["loss"])


def test_a_model_is_saved_without_a_copy_of_its_weights_in_memory(tmp_path: Path) -> None:
    layers = [keras.layers.Dense(512) for _ in range(16)]
    model = keras.Sequential([keras.Input((512,)), *layers])
    tracemalloc.start()
    try:
        save_model(tmp_path, model, pytest.fail)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = sum(w.nbytes for w in model.get_weights())
    assert most < size / 2
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


def test_where_not_even_weights_can_be_saved_one_line_says_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(train(Unsavable(2), tmp_path, epochs=1)) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "warning: " in line]
    why = "RuntimeError: this layer keeps its weights to itself"
    assert lines == [
        "warning: model.keras could not be saved, its weights are in the checkpoints only "
        f"({why}): {why}"
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "history.json"]
    # The checkpoint is enough to continue.
    assert len(train(Unsavable(2), tmp_path, epochs=3)) == 3


def test_a_log_that_is_no_number_does_not_keep_the_history_from_being_written(
    tmp_path: Path,
) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    config = TrainingConfig(global_batch_size=4, micro_batch_size=2, epochs=1)
    Trainer(model, (X, X), config=config, job_dir=tmp_path, callbacks=[Describes()]).fit()
    history = json.loads((tmp_path / "history.json").read_text())["history"]
    assert history["kind"] == ["<class 'set'>"]


class Unexportable(keras.Sequential):
    """A model from which no graph for serving can be made."""

    def export(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("how many are there?")


@pytest.fixture
def exporting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.OPTIONS, JobOptions(otherwise={"export": "saved_model"}).encode())


@pytest.mark.usefixtures("exporting")
@pytest.mark.parametrize("again", [False, True])
def test_a_model_that_is_exported_serves_what_it_predicts(tmp_path: Path, again: bool) -> None:
    layer = keras.layers.Dense(2)
    train(layer, tmp_path, epochs=1)
    if again:
        layer = keras.layers.Dense(2)
        train(layer, tmp_path, epochs=2)
    loaded = tf.saved_model.load(str(tmp_path / "saved_model"))
    served = loaded.serve(tf.constant(X))
    np.testing.assert_allclose(served, layer(X), rtol=1e-6)
    assert not list(tmp_path.glob(".saved_model*"))


@pytest.mark.usefixtures("exporting")
def test_a_model_that_cannot_be_exported_is_trained_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(keras.layers.Dense(2), tmp_path, epochs=1, kind=Unexportable)
    lines = [line for line in capsys.readouterr().out.splitlines() if "warning: " in line]
    (line,) = [line for line in lines if "saved_model could not be exported" in line]
    assert "how many are there?" in line
    assert (tmp_path / "model.keras").exists()
    assert not (tmp_path / "saved_model").exists()
