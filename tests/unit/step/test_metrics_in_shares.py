"""Metrics of all kinds beside each other, computed in micro-batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.common import files

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
Y = X[:, :1].copy()


class Largest(keras.metrics.Metric):
    """Not a sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_pred))))

    def result(self) -> Any:
        return keras.ops.copy(self.value)  # plain Keras would log what validation makes of it


def per_example(y: Any, y_pred: Any) -> Any:
    return tf.sqrt(tf.reduce_mean(tf.square(y - y_pred), -1))


def per_batch(y: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.abs(y - y_pred))


def history(metrics: list[Any], elastic: bool) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=metrics)
    data = {"x": X, "y": Y, "validation_data": (X[:11], Y[:11])}
    callbacks = [ElasticCallback()] if elastic else []
    run = model.fit(**data, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    return dict(run.history)


def test_metrics_of_all_kinds_are_those_of_plain_fit_without_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, expected = (
        history([per_example, per_batch, Largest(), "mae"], elastic) for elastic in (True, False)
    )
    assert "warning" not in capsys.readouterr().out
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def test_the_history_of_a_metric_with_several_values_can_be_written(tmp_path: Path) -> None:
    values = np.array([0.25, 0.5], np.float32)
    path = tmp_path / files.HISTORY
    files.write_json(path, {"f1_score": [values], "loss": [np.float32(0.5)]})
    assert json.loads(path.read_text()) == {"f1_score": [[0.25, 0.5]], "loss": [0.5]}


class OwnLogs(keras.Model):
    """Adds values of all kinds to the logs, in training and in evaluation."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return self._with_more(super().train_step(data))

    def test_step(self, data: Any) -> dict[str, Any]:
        return self._with_more(super().test_step(data))

    def _with_more(self, logs: dict[str, Any]) -> dict[str, Any]:
        return {
            **logs,
            "perplexity": keras.ops.exp(logs["loss"]),
            "twice": 2 * logs["mae"],
            "both": logs["loss"] + logs["mae"],
            "again": logs["mae"],
            "rate": self.optimizer.learning_rate,
        }


def test_values_computed_from_metrics_are_those_of_the_whole_batch() -> None:
    def run(elastic: bool) -> dict[str, Any]:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        model = OwnLogs(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", metrics=["mae"])
        data = {"x": X, "y": Y, "validation_data": (X[:11], Y[:11])}
        callbacks = [ElasticCallback()] if elastic else []
        arguments = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        return dict(model.fit(**data, **arguments, callbacks=callbacks).history)

    found, expected = run(elastic=True), run(elastic=False)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
