"""A worker takes each step once before it joins. Nothing of that is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.loop import newcomer
from hvd_elastic_keras.step.partitioned_step import PartitionedStep

X = np.random.default_rng(0).random((24, 6), np.float32)
Y = X[:, :1].copy()
STEPS = 3


class Counted(keras.optimizers.Adam):
    """Counts how often the optimizer is applied, not how often it is traced."""

    applied = 0

    def _note(self) -> np.int64:
        self.applied += 1
        return np.int64(0)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Counts a call."""
        with tf.control_dependencies([tf.numpy_function(self._note, [], tf.int64)]):
            return super().apply(*args, **kwargs)


def trained(least_bytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Returns a model after an epoch, with a validation."""
    monkeypatch.setattr(newcomer, "LARGE_BYTES", least_bytes)
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    model.compile(Counted(0.01), "mse", metrics=["mae"])
    before: list[Any] = []
    seen = keras.callbacks.LambdaCallback(on_train_begin=lambda _: before.append(values(model)))
    data = {"x": X, "y": Y, "batch_size": 8, "validation_data": (X[:8], Y[:8])}
    model.fit(**data, verbose=0, callbacks=[seen, ElasticCallback(micro_batch_size=4)])
    assert len(before) == 1
    return model, before[0]


def values(model: Any) -> list[Any]:
    """Returns the values of all variables."""
    return [np.asarray(v.value) for v in (*model.variables, *model.optimizer.variables)]


def test_a_large_model_does_not_apply_what_it_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    small, before_small = trained(2**40, monkeypatch)
    large, before_large = trained(0, monkeypatch)
    assert (small.optimizer.applied, large.optimizer.applied) == (STEPS + 1, STEPS)
    np.testing.assert_equal(before_large, before_small)
    np.testing.assert_equal(values(large), values(small))


class WithMore(keras.Sequential):
    """Has a step that changes variables that no layer holds; one of them cannot be sent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Not attributes, because Keras would track them.
        self.__dict__["held"] = [tf.Variable(0.0), tf.Variable("")]

    def train_step(self, data: Any) -> dict[str, Any]:
        """Counts the steps."""
        number, text = self.held
        number.assign_add(1.0)
        text.assign(tf.strings.join([text, "a"]))
        return {**super().train_step(data), "number": number + 0.0}


@pytest.mark.parametrize("eager", [False, True])
def test_variables_that_no_layer_holds_keep_their_values(eager: bool) -> None:
    model = WithMore([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=eager)
    callbacks = [ElasticCallback(micro_batch_size=4)]
    history = model.fit(X, Y, batch_size=8, verbose=0, callbacks=callbacks).history
    assert history["number"] == [STEPS]
    assert [v.numpy() for v in model.held] == [STEPS, b"a" * STEPS]


def test_a_step_is_tried_with_more_than_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def noted(step: Any, batch: Any, **_: Any) -> None:
        tried.append(batch.part.num_examples_of_step)

    monkeypatch.setattr(PartitionedStep, "warm_up", noted)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[ElasticCallback(micro_batch_size=1)])
    assert tried == [2]


class CountsOnSize(keras.Sequential):
    """Has a step that takes batches of one size only."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes batches of 8 examples."""
        x, y = data
        with tf.GradientTape() as tape:
            outputs = tf.reshape(self(x, training=True), (8,))
            loss = tf.reduce_mean(tf.square(outputs - y[:, 0]))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"own_loss": loss}


def test_a_step_may_count_on_the_size_of_its_batches() -> None:
    histories = []
    for callbacks in ([], [ElasticCallback(micro_batch_size=2)]):
        keras.utils.set_random_seed(0)
        model = CountsOnSize([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd")
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True)
        histories.append(model.fit(batches, epochs=2, verbose=0, callbacks=callbacks).history)
    plain, elastic = histories
    np.testing.assert_allclose(elastic["own_loss"], plain["own_loss"], rtol=1e-5)
