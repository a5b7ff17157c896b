"""Hooks of metrics are called as often, and in the order, as by plain Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback

X = np.random.default_rng(7).normal(size=(40, 3)).astype("float32")
calls: list[str] = []
HOOKS = ("on_train_begin", "on_epoch_begin", "on_test_begin", "on_test_end", "on_epoch_end")


class Noted(keras.metrics.MeanMetricWrapper):
    def __init__(self) -> None:
        super().__init__(keras.losses.mean_absolute_error, name="noted")

    def reset_state(self) -> None:
        calls.append("reset_state")
        super().reset_state()

    def result(self) -> Any:
        if tf.executing_eagerly():
            calls.append("result")
        return super().result()


class Model(keras.Model):
    def reset_metrics(self) -> None:
        calls.append("reset_metrics")
        super().reset_metrics()

    def get_metrics_result(self) -> Any:
        if tf.executing_eagerly():
            calls.append("get_metrics_result")
        return super().get_metrics_result()


class Hooks(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        for hook in HOOKS:
            setattr(self, hook, lambda *_, hook=hook: calls.append(hook))


def calls_of(elastic: bool, **arguments: Any) -> tuple[list[str], dict[str, float]]:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", metrics=[Noted()])
    calls.clear()
    for _ in range(2):
        callbacks = [*([ElasticCallback()] if elastic else []), Hooks()]
        model.fit(
            X, X[:, :1], batch_size=16, shuffle=False, verbose=0, callbacks=callbacks, **arguments
        )
    noted = list(calls)
    return noted, {name: float(v) for name, v in model.get_metrics_result().items()}


@pytest.mark.parametrize(
    "arguments",
    [
        {"epochs": 2},
        {"epochs": 3, "validation_data": (X, X[:, :1]), "validation_freq": 2},
        {"epochs": 2, "initial_epoch": 1, "validation_data": (X, X[:, :1])},
    ],
)
def test_they_are_called_as_by_plain_keras(arguments: dict[str, Any]) -> None:
    (found, left), (expected, left_by_keras) = (calls_of(e, **arguments) for e in (True, False))
    assert found == expected
    assert left == pytest.approx(left_by_keras, rel=1e-4), "what a script reads after fit"
