"""The script in docs/checkpoints.md reads a checkpoint without this package."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import Trainer, TrainingConfig

REPOSITORY = Path(__file__).resolve().parents[3]
HEADING = "## Reading a checkpoint with plain Keras\n"
MODEL = """
import keras

def build():
    layers = keras.layers
    return keras.Sequential([
        keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.5),
        layers.Dense(1),
    ])
"""
X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


def script_in_docs() -> str:
    _, _, section = (REPOSITORY / "docs" / "checkpoints.md").read_text().partition(HEADING)
    return section.split("```python\n", 1)[1].split("```", 1)[0]


def test_the_weights_are_those_that_were_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    build = importlib.import_module("my_model").build
    model = build()
    model.compile("adam", "mse", metrics=["mae"])
    config = TrainingConfig(global_batch_size=8, epochs=3)
    Trainer(model, (X, X[:, :1]), config=config, job_dir=tmp_path / "job").fit()
    script = script_in_docs()
    assert "hvd_elastic_keras" not in script
    exec(script, {})
    found = keras.saving.load_model(tmp_path / "model.keras").get_weights()
    assert any(np.any(a != b) for a, b in zip(found, build().get_weights(), strict=True))
    for read, trained in zip(found, model.get_weights(), strict=True):
        np.testing.assert_array_equal(read, trained)
