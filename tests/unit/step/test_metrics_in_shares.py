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
    """Not a sum: it cannot be computed in shares."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_pred))))

    def result(self) -> Any:
        return self.value


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


def test_functions_with_a_value_per_example_and_per_batch_do_not_affect_each_other() -> None:
    metrics = [per_example, per_batch, "mae"]
    found, expected = (history(metrics, elastic) for elastic in (True, False))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def test_a_metric_given_to_compile_that_does_not_add_up_is_found_and_averaged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = history([Largest(), "mae"], elastic=True)
    told = "warning: these metrics of a batch do not follow from its parts: largest"
    assert told in capsys.readouterr().out
    expected = history([Largest(), "mae"], elastic=False)
    assert found.keys() == expected.keys()
    assert len(found.pop("largest")) == len(expected.pop("largest")) == 2
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, err_msg=name)


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


def test_a_metric_that_does_not_move_on_the_first_examples_is_found_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Predictions are negative at first: a largest one stays at 0, as a sum of nothing would."""

    class LargestYet(Largest):
        def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    x = np.abs(X)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.layers[0].kernel.assign(-tf.ones([4, 1]))
    model.compile(keras.optimizers.SGD(0.3), "mse", metrics=[LargestYet()])
    elastic = ElasticCallback(micro_batch_size=2)
    arguments = {"validation_data": (x, x[:, :1]), "callbacks": [elastic], "verbose": 0}
    history = model.fit(x, x[:, :1], batch_size=10, epochs=2, shuffle=False, **arguments).history
    assert len(history["largest"]) == 2
    assert history["val_largest"][-1] == pytest.approx(float(np.max(model.predict(x, verbose=0))))
    assert capsys.readouterr().out.count("do not follow from its parts") == 2, (
        "of training and evaluation"
    )


def test_what_does_not_add_up_has_the_mean_of_the_parts_of_a_batch() -> None:
    """Ten examples in parts of 4, 4 and 2, whose values count by their examples."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[Largest()])
    arguments = {"batch_size": 10, "callbacks": [ElasticCallback(micro_batch_size=4)]}
    history = model.fit(X[:10], Y[:10], shuffle=False, verbose=0, **arguments).history
    values = np.abs(model.predict(X[:10], verbose=0))[:, 0]
    parts = [values[:4], values[4:8], values[8:]]
    expected = sum(part.max() * len(part) / 10 for part in parts)
    np.testing.assert_allclose(history["largest"], [expected], rtol=1e-5)
