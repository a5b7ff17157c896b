"""The same model is cut the same way by `fit`, `Trainer` and a model module.

By itself, batch normalisation differs: see `batch_norm` of `ElasticCallback`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.api import callback, model_job
from hvd_elastic_keras.api.trainer import Trainer
from hvd_elastic_keras.keras_internals.model_building import has_batch_norm
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.settings.training_config import TrainingConfig

layers = keras.layers
X = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
Y = X[:, :1].copy()
BY_MICRO_BATCH = ElasticCallback(batch_norm="micro_batch")


def plain() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])


def normalised() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.BatchNormalization(), layers.Dense(1)])


class Late(keras.Model):
    """Has its layers only when it is built."""

    def build(self, shape: Any) -> None:
        self.norm, self.out = layers.BatchNormalization(), layers.Dense(1)
        self.norm.build(shape)
        self.out.build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.norm(x, training=training))


MODULE = """
from tests.unit.api import test_one_cut as cases

def model():
    model = cases.{name}()
    model.compile("sgd", "mse")
    return model

def dataset(split):
    return (cases.X, cases.Y) if split == "train" else None
"""


def cut_of_fit(
    model: Any,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    elastic: ElasticCallback = BY_MICRO_BATCH,
) -> int:
    seen: list[int] = []
    monkeypatch.setattr(
        callback, "train", lambda training, _: seen.append(training.origin.micro_batch_size)
    )
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=size, verbose=0, callbacks=[elastic])
    return seen[0]


def cut_of_trainer(model: Any, size: int) -> int:
    model.compile("sgd", "mse")
    trainer = Trainer(model, (X, Y), config=TrainingConfig(global_batch_size=size))
    assert trainer._origin.micro_batch_size == trainer.micro_batch_size
    return trainer.micro_batch_size


def cut_of_module(name: str, size: int, directory: Path) -> int:
    path = directory / "module.py"
    path.write_text(MODULE.format(name=name))
    spec = JobSpec(TrainingConfig(global_batch_size=size), str(path))
    return int(model_job.check(spec, directory)["micro_batch_size"])


@pytest.mark.parametrize("make", [plain, normalised, Late])
@pytest.mark.parametrize("size", [7, 32, 64, 100, 128])
def test_fit_trainer_and_module_cut_a_batch_alike(
    make: Any, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = TrainingConfig(global_batch_size=size).cut.of(size, make is not plain)
    assert cut_of_fit(make(), size, monkeypatch) == expected
    whole = TrainingConfig(global_batch_size=size).cut.of(size, has_batch_norm=False)
    assert cut_of_fit(make(), size, monkeypatch, ElasticCallback()) == whole
    assert cut_of_trainer(make(), size) == expected
    assert cut_of_module(make.__name__, size, tmp_path) == expected


@pytest.mark.parametrize("size", [32, 100])
def test_the_same_cut_leads_to_the_same_weights(size: int) -> None:
    weights = []
    for train in ("fit", "trainer"):
        keras.utils.set_random_seed(1)
        model = normalised()
        model.compile("sgd", "mse")
        if train == "fit":
            ours = BY_MICRO_BATCH
            model.fit(X, Y, batch_size=size, shuffle=False, verbose=0, callbacks=[ours])
        else:
            config = TrainingConfig(global_batch_size=size, shuffle=False)
            Trainer(model, (X, Y), config=config).fit()
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@keras.saving.register_keras_serializable("tests")
class NormalisedCell(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = layers.BatchNormalization()
        self.state_size = self.output_size = 4

    def call(self, x: Any, states: Any) -> Any:
        return self.norm(x), states

    @classmethod
    def from_config(cls, _: Any) -> NormalisedCell:
        return cls()


class Holder(keras.Model):
    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.parts = parts


class OwnNorm(layers.BatchNormalization):
    """Of a user's own."""


class WithinLayer(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = keras.applications.MobileNetV2(
            weights=None, input_shape=(32, 32, 3), alpha=0.35, classes=2
        )


PLACES: dict[str, Any] = {
    "TimeDistributed": lambda: layers.TimeDistributed(layers.BatchNormalization()),
    "a cell": lambda: layers.RNN(NormalisedCell()),
    "Bidirectional": lambda: layers.Bidirectional(layers.RNN(NormalisedCell())),
    "one of several cells": lambda: layers.RNN([layers.LSTMCell(4), NormalisedCell()]),
    "an application in a layer": WithinLayer,
    "a subclass": OwnNorm,
    "a model in an attribute": lambda: Holder(normalised()),
    "a model in a list": lambda: Holder([layers.Dense(1), normalised()]),
    "a model in a dict": lambda: Holder({"a": normalised()}),
    "a list in a dict": lambda: Holder({"a": [(normalised(),)]}),
    "a nested model": lambda: Holder(Holder(normalised())),
}


@pytest.mark.parametrize("place", PLACES)
def test_batch_norm_is_found_wherever_a_model_keeps_it(place: str) -> None:
    part = PLACES[place]()
    assert has_batch_norm(keras.Sequential([part]))
    assert has_batch_norm(Holder(part))


@pytest.mark.parametrize("layer", ["LayerNormalization", "GroupNormalization", "Normalization"])
def test_what_normalises_each_example_is_not_taken_for_it(layer: str) -> None:
    assert not has_batch_norm(keras.Sequential([getattr(layers, layer)()]))
