"""`ElasticCallback` takes over `fit`, however it came into the list of callbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.api import callback as module

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")


class WithOwnSetModel(ElasticCallback):
    def set_model(self, model: Any) -> None:
        super().set_model(model)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects the trainings that are taken over."""
    seen: list[Any] = []
    train = module.train

    def note(training: Any, membership: Any) -> None:
        seen.append(training)
        train(training, membership)

    monkeypatch.setattr(module, "train", note)
    return seen


def small() -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(model: Any, callbacks: Any) -> Any:
    return model.fit(X, X[:, :1], batch_size=10, epochs=2, verbose=0, callbacks=callbacks)


def test_a_subclass_may_override_set_model(trainings: list[Any]) -> None:
    fit(small(), [WithOwnSetModel()])
    assert len(trainings) == 1


def test_a_list_of_callbacks_may_be_used_again(trainings: list[Any]) -> None:
    model = small()
    callbacks = keras.callbacks.CallbackList([ElasticCallback()], add_history=True, model=model)
    for _ in range(2):
        assert fit(model, callbacks).epoch == [0, 1]
    assert len(trainings) == 2


def test_a_model_without_trainable_weights_can_be_fitted(trainings: list[Any]) -> None:
    model = small()
    model.trainable = False
    model.compile("sgd", "mse")
    before = model.get_weights()
    assert len(fit(model, [ElasticCallback()]).history["loss"]) == 2
    assert len(trainings) == 1
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
