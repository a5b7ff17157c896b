"""Losses that several workers can compute in shares, and those that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback  # noqa: E402
from hvd_elastic_keras.errors import ConfigurationError  # noqa: E402

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
Y = X[:, :1].copy()


def weights(loss: Any, elastic: bool, dropout: float = 0.0) -> list[Any]:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8), keras.layers.Dropout(dropout), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", loss)
    callbacks = [ElasticCallback()] if elastic else []
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
    return list(model.get_weights())


@pytest.mark.parametrize("reduction", ["sum", "none", None])
def test_a_reduction_that_is_no_mean_is_refused(reduction: str | None) -> None:
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    with pytest.raises(ConfigurationError, match=f"reduction={reduction!r}"):
        weights(loss, elastic=True)


def test_a_function_that_sums_over_the_examples_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sum over the examples"):
        weights(lambda y, y_pred: tf.reduce_sum(tf.square(y - y_pred)), elastic=True)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, y_pred: tf.reduce_sum(tf.square(y - y_pred), -1),
        lambda y, y_pred: tf.reduce_mean(tf.square(y - y_pred)),
        "mae",
    ],
    ids=["per example", "mean", "name"],
)
def test_means_are_trained_as_by_fit(loss: Any) -> None:
    pairs = zip(weights(loss, elastic=True), weights(loss, elastic=False), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_ignored_examples_are_not_taken_for_a_sum() -> None:
    keras.utils.set_random_seed(0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    labels = np.arange(20) % 2
    labels[0] = -1
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", loss)
    run = model.fit(X, labels, batch_size=16, verbose=0, callbacks=[ElasticCallback()])
    assert np.isfinite(run.history["loss"]).all()


def test_random_layers_are_not_taken_for_a_sum() -> None:
    assert np.isfinite(weights("mse", elastic=True, dropout=0.5)[0]).all()
