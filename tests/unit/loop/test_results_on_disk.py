"""A finished training is not lost over a file of results that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras

from hvd_elastic_keras import Trainer, TrainingConfig

X = np.arange(16, dtype="float32").reshape(8, 2)


class Unsavable(keras.layers.Dense):
    """A layer of which not even the weights can be saved."""

    def save_own_variables(self, store: Any) -> None:
        raise RuntimeError("this layer\nkeeps its weights to itself\n\nand gives advice")


class Describes(keras.callbacks.Callback):
    """Adds to the logs what is no number."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["kind"] = {"name", "of"}.__class__


def train(layer: keras.layers.Layer, job_dir: Path, epochs: int) -> list[float]:
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile("sgd", "mse")
    config = TrainingConfig(global_batch_size=4, micro_batch_size=2, epochs=epochs)
    trainer = Trainer(model, (X, X), config=config, job_dir=job_dir)
    return list(trainer.fit().history["loss"])


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
    # The checkpoint is all that is needed to go on.
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
