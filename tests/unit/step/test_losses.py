"""Losses that several workers can compute in shares, and those that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback

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


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, y_pred: tf.reduce_sum(tf.square(y - y_pred), -1),
        lambda y, y_pred: tf.reduce_mean(tf.square(y - y_pred)),
        lambda y, y_pred: 0.01 * tf.reduce_sum(tf.square(y - y_pred)),
        keras.losses.MeanSquaredError(reduction="sum"),
        keras.losses.MeanSquaredError(reduction=None),
        "mae",
    ],
    ids=["per example", "mean", "sum", "reduction sum", "reduction none", "name"],
)
def test_means_and_sums_are_trained_as_by_fit(loss: Any) -> None:
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
    pairs = zip(*(weights("mse", elastic, dropout=0.5) for elastic in (True, False)), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, atol=1e-6)


class WithLosses(keras.layers.Layer):
    """Adds a small sum beside a mean: of all gradients it is a few per cent."""

    def call(self, x: Any) -> Any:
        self.add_loss(1e-3 * keras.ops.sum(keras.ops.square(x)))
        self.add_loss(keras.ops.mean(keras.ops.abs(x)))
        self.add_loss(1e-4 * keras.ops.sum(keras.ops.abs(x), axis=-1))
        return x


def added(elastic: bool) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activity_regularizer="l2", kernel_regularizer="l1"),
            WithLosses(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    callbacks = [ElasticCallback()] if elastic else []
    data = {"x": X, "y": Y, "validation_data": (X[:7], Y[:7])}
    run = model.fit(**data, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
    return model.get_weights(), run.history


def test_sums_that_layers_add_are_weighed_as_sums() -> None:
    (found, history), (expected, plain_history) = (added(elastic) for elastic in (True, False))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for name, values in plain_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)
