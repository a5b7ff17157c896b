"""Models with a `train_step` of their own are built as plain `fit` builds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X[:, :1].copy()


class Model(keras.Model):
    """Not built before `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.tested = 0

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"loss": self.trained(data)}

    def trained(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return loss

    def test_step(self, data: Any) -> dict[str, Any]:
        self.tested += 1
        x, y = data
        return {"loss": keras.ops.mean((self(x) - y) ** 2)}


def fit(model: Any, elastic: bool, **arguments: Any) -> Any:
    callbacks = [ElasticCallback()] if elastic else []
    given = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, **arguments}
    return model.fit(X, Y, callbacks=callbacks, **given).history


class CompiledByXla(Model):
    @tf.function(jit_compile=True)
    def trained(self, data: Any) -> Any:
        return super().trained(data)


def compiled_by_xla(elastic: bool) -> Any:
    model = CompiledByXla()
    model.compile("sgd")
    return fit(model, elastic), int(model.optimizer.iterations)


def compiled_again(elastic: bool) -> Any:
    class Measured(Model):
        def trained(self, data: Any) -> Any:
            loss = super().trained(data)
            self.compute_metrics(data[0], data[1], self(data[0]))
            return loss

    model = Measured()
    model.compile("sgd", loss="mse")
    first = fit(model, elastic)
    model.compile(model.optimizer, loss="mae", metrics=["mse"])
    return first, fit(model, elastic), int(model.optimizer.iterations)


def with_an_apply_of_its_own(elastic: bool) -> Any:
    optimizer = keras.optimizers.SGD(0.1)
    original = optimizer.apply
    optimizer.apply = lambda grads, variables=None: original([g / 2 for g in grads], variables)
    model = Model()
    model.compile(optimizer)
    return fit(model, elastic), "apply" in vars(optimizer)


def eager_with_a_tensor_of_the_step_before(elastic: bool) -> Any:
    class Remembers(Model):
        before: Any = 0.0

        def train_step(self, data: Any) -> dict[str, Any]:
            loss = self.trained(data)
            change, self.before = loss - self.before, loss
            return {"loss": loss, "change": change}

    model = Remembers()
    model.compile("sgd", run_eagerly=True)
    return fit(model, elastic)


def with_variables_of_given_values(elastic: bool) -> Any:
    class Scaled(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.weight = self.add_weight(shape=(shape[-1],), initializer="ones")
            self.offset = keras.Variable(np.ones(shape[-1], "float32"))
            self.seen = keras.Variable(0.0, trainable=False)

        def call(self, x: Any) -> Any:
            self.seen.assign_add(1.0)
            return x * self.weight + self.offset

    class With(Model):
        def __init__(self) -> None:
            super().__init__()
            self.scaled = Scaled()

        def call(self, x: Any) -> Any:
            return self.dense(self.scaled(x))

    model = With()
    model.compile("adam")
    history = fit(model, elastic)
    return history, len(model.variables), len(model.optimizer.variables), float(model.scaled.seen)


CASES = (
    compiled_by_xla,
    compiled_again,
    with_an_apply_of_its_own,
    eager_with_a_tensor_of_the_step_before,
    with_variables_of_given_values,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_trains_as_in_plain_fit(case: Callable[[bool], Any]) -> None:
    found, expected = (keras.tree.flatten(case(elastic)) for elastic in (True, False))
    assert found == pytest.approx(expected, rel=1e-5)


class Unfinished(Model):
    """Its first trace fails after it has made variables."""

    fails = True

    def train_step(self, data: Any) -> dict[str, Any]:
        logs = super().train_step(data)
        if type(self).fails and not tf.executing_eagerly():
            type(self).fails = False
            raise ValueError("not now")
        return logs


def test_variables_of_a_trace_that_failed_have_values() -> None:
    model = Unfinished()
    model.compile("sgd")
    history = fit(model, elastic=True)
    assert not Unfinished.fails
    expected = Model()
    expected.compile("sgd")
    assert history["loss"] == pytest.approx(fit(expected, elastic=False)["loss"], rel=1e-5)


def test_later_fits_trace_the_steps_no_more_for_being_built() -> None:
    model = Model()
    model.compile("sgd")
    counts = []
    for _ in range(3):
        fit(model, elastic=True, validation_data=(X[:8], Y[:8]))
        counts.append(model.tested)
    assert counts[1] == counts[2]


def test_a_dataset_with_none_in_it_is_refused_in_words() -> None:
    model = Model()
    model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True).batch(8)
    with pytest.raises(ValueError, match="x contains"):
        model.fit(data.map(lambda x, y: (x, y, None)), epochs=2, callbacks=[ElasticCallback()])
