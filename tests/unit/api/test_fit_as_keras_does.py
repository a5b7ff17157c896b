"""`fit` with `ElasticCallback`, alone, against plain `fit`: weights, `History`, hooks and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback

SIZE = 100
X = np.random.default_rng(0).normal(size=(SIZE, 6)).astype("float32")
LABELS = (X[:, 0] > 0).astype("int64") + (X[:, 1] > 0)
WEIGHTS = np.random.default_rng(1).random(SIZE).astype("float32")
BATCH = 16
layers = keras.layers


def small(**compile_arguments: Any) -> Any:
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3)]
    )
    compile_small(model, **compile_arguments)
    return model


def compile_small(model: Any, **arguments: Any) -> None:
    defaults: dict[str, Any] = {
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }
    model.compile(**{**defaults, **arguments})


def dataset(size: int = SIZE, batch: int = BATCH) -> Any:
    return tf.data.Dataset.from_tensor_slices((X[:size], LABELS[:size])).batch(batch)


def unknown_length() -> Any:
    return dataset().unbatch().filter(lambda x, y: y < 2).batch(BATCH)


def in_kept_order(batch: int = 0) -> Any:
    """Returns examples, or batches, in an order that the first pass draws and a cache keeps."""
    shuffled = tf.data.Dataset.from_tensor_slices((X, LABELS)).shuffle(SIZE, seed=7)
    return (shuffled.batch(batch) if batch else shuffled).cache()


class Batches(keras.utils.PyDataset):
    """Another order in every epoch, from `on_epoch_end`, as users write it."""

    def __init__(self, weighted: bool = False) -> None:
        super().__init__(workers=1)
        self._order = np.arange(SIZE)
        self._random = np.random.default_rng(3)
        self._weighted = weighted

    @property
    def num_batches(self) -> int:
        return -(-SIZE // BATCH)

    def __getitem__(self, index: int) -> Any:
        part = self._order[index * BATCH : (index + 1) * BATCH]
        return (X[part], LABELS[part], WEIGHTS[part]) if self._weighted else (X[part], LABELS[part])

    def on_epoch_end(self) -> None:
        self._random.shuffle(self._order)


def generator() -> Iterator[Any]:
    while True:
        for start in range(0, SIZE, BATCH):
            yield X[start : start + BATCH], LABELS[start : start + BATCH]


INPUTS: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: {"x": X, "y": LABELS, "batch_size": BATCH},
    "float64 arrays": lambda: {"x": X.astype("float64"), "y": LABELS, "batch_size": BATCH},
    "shuffled arrays": lambda: {
        "x": X,
        "y": LABELS,
        "batch_size": BATCH,
        "shuffle": True,
        "sample_weight": WEIGHTS,
        "validation_split": 0.3,
    },
    "class_weight": lambda: {
        "x": X,
        "y": LABELS,
        "batch_size": BATCH,
        "class_weight": {0: 2.0, 1: 0.5, 2: 1.0},
    },
    "shuffled within batches": lambda: {
        "x": X,
        "y": LABELS,
        "batch_size": BATCH,
        "shuffle": "batch",
    },
    "shuffled arrays in steps": lambda: {
        "x": X,
        "y": LABELS,
        "batch_size": BATCH,
        "shuffle": True,
        "steps_per_epoch": 3,
    },
    "shuffled batches": lambda: {"x": Batches(), "shuffle": True},
    "one batch only": lambda: {"x": X, "y": LABELS, "batch_size": 500},
    "steps_per_epoch": lambda: {"x": X, "y": LABELS, "batch_size": BATCH, "steps_per_epoch": 3},
    "validation_data": lambda: {
        "x": X,
        "y": LABELS,
        "batch_size": BATCH,
        "validation_data": (X[:50], LABELS[:50], WEIGHTS[:50]),
        "validation_batch_size": 7,
    },
    "validation_freq": lambda: {
        "x": X,
        "y": LABELS,
        "batch_size": BATCH,
        "validation_data": (X[:50], LABELS[:50]),
        "validation_freq": [1, 3],
    },
    "validation_steps": lambda: {
        "x": X,
        "y": LABELS,
        "batch_size": BATCH,
        "validation_data": dataset().repeat(),
        "validation_steps": 2,
    },
    "initial_epoch": lambda: {"x": X, "y": LABELS, "batch_size": BATCH, "initial_epoch": 2},
    "nothing left": lambda: {"x": X, "y": LABELS, "batch_size": BATCH, "initial_epoch": 3},
    "dataset": lambda: {"x": dataset()},
    "shuffled dataset": lambda: {
        "x": dataset().unbatch().shuffle(SIZE, seed=7).batch(BATCH),
        "validation_data": dataset(40, 9),
    },
    "parts of a shuffled cache": lambda: {
        "x": (kept := in_kept_order()).skip(40).batch(BATCH),
        "validation_data": kept.take(40).batch(9),
    },
    "a part of a shuffled cache that is shuffled again": lambda: {
        "x": (whole := in_kept_order().shuffle(30, seed=3)).batch(BATCH),
        "validation_data": whole.take(40).batch(9),
    },
    "a part of cached batches": lambda: {
        "x": (batches := in_kept_order(BATCH)).prefetch(2),
        "validation_data": batches.take(2),
        "validation_freq": 2,
    },
    "dataset of unknown length": lambda: {
        "x": unknown_length(),
        "validation_data": unknown_length(),
    },
    "infinite dataset": lambda: {"x": dataset().repeat(), "steps_per_epoch": 5},
    "unknown and steps": lambda: {"x": unknown_length().repeat(2), "steps_per_epoch": 4},
    "weighted dataset": lambda: {"x": dataset(), "class_weight": {0: 2.0, 1: 0.5, 2: 1.0}},
    "batches of many sizes": lambda: {
        "x": dataset(40, 10).concatenate(dataset(60, 30)).concatenate(dataset(5, 5))
    },
    "PyDataset": lambda: {"x": Batches(), "shuffle": False, "validation_data": Batches()},
    "weighted PyDataset": lambda: {"x": Batches(weighted=True), "shuffle": False},
    "generator": lambda: {"x": generator(), "steps_per_epoch": 5},
}


UNKNOWN_LENGTH = ("shuffled dataset", "dataset of unknown length", "unknown and steps")


def fit(
    make: Callable[[], Any], arguments: Callable[[], dict[str, Any]], elastic: bool
) -> tuple[Any, Any, Any]:
    keras.utils.set_random_seed(1)
    model = make()
    hooks = Hooks()
    callbacks = [hooks, *([ElasticCallback()] if elastic else [])]
    given = {"epochs": 3, "verbose": 0, "shuffle": False, **arguments()}
    history = model.fit(callbacks=callbacks, **given)
    assert history is model.history
    return model, history, hooks


class Hooks(keras.callbacks.Callback):
    """Writes down all hooks with their logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and not name.startswith(("on_batch", "on_predict")):
            calls = object.__getattribute__(self, "calls")

            def note(*arguments: Any, logs: Any = None) -> None:
                given = [*arguments, *([logs] if logs is not None else [])]
                calls.append((name, *(a for a in given if a is not None and a != {})))

            return note
        return object.__getattribute__(self, name)


def assert_same(found: Any, expected: Any, tolerance: float = 1e-5, surplus: bool = False) -> None:
    """Weights, optimizer, history and hooks agree.

    `surplus`: Keras starts one step too many at the end of data of unknown length, which counts in
    `optimizer.iterations` and calls `on_train_batch_begin` although it has no batch.
    """
    (model, history, hooks), (other, other_history, other_hooks) = found, expected
    for a, b in zip(model.variables, other.variables, strict=True):
        if "seed_generator" not in a.path:
            np.testing.assert_allclose(
                np.asarray(a.value, "float64"),
                np.asarray(b.value, "float64"),
                rtol=tolerance,
                atol=tolerance,
                err_msg=a.path,
            )
    slots = zip(model.optimizer.variables, other.optimizer.variables, strict=other.optimizer.built)
    for a, b in slots:
        if surplus and a.path.endswith("iteration"):
            continue
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=a.path)
    assert history.epoch == other_history.epoch
    assert list(history.history) == list(other_history.history)
    for name, values in other_history.history.items():
        np.testing.assert_allclose(
            history.history[name], values, rtol=tolerance, atol=tolerance, err_msg=name
        )
    if surplus:
        for h in (hooks, other_hooks):
            h.calls = [c for c in h.calls if not c[0].endswith("batch_begin")]
    assert [c[:2] if isinstance(c[-1], dict) else c for c in hooks.calls if len(c) != 2] == [
        c[:2] if isinstance(c[-1], dict) else c for c in other_hooks.calls if len(c) != 2
    ]
    for call, other_call in zip(hooks.calls, other_hooks.calls, strict=True):
        assert call[0] == other_call[0]
        for a, b in zip(call[1:], other_call[1:], strict=True):
            assert (list(a) == list(b)) if isinstance(a, dict) else (a == b)
            if isinstance(a, dict):
                for name in a:
                    np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", INPUTS)
def test_every_kind_of_input_gives_the_result_of_plain_fit(name: str) -> None:
    found, expected = (fit(small, INPUTS[name], elastic) for elastic in (True, False))
    assert_same(found, expected, surplus=name in UNKNOWN_LENGTH)


class Subclassed(keras.Model):
    """Not built before `fit`; two outputs, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="tanh")
        self.heads = {"a": layers.Dense(3), "b": layers.Dense(1)}

    def call(self, x: Any) -> Any:
        hidden = self.hidden(x)
        return {name: head(hidden) for name, head in self.heads.items()}


def subclassed() -> Any:
    model = Subclassed()
    model.compile(
        keras.optimizers.SGD(0.1),
        loss={"a": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "b": "mae"},
        loss_weights={"a": 1.0, "b": 0.3},
        metrics={"a": ["accuracy"], "b": ["mse", "mae"]},
        weighted_metrics={"a": [], "b": ["mse"]},
    )
    return model


class CustomStep(keras.Model):
    """As in "Customizing what happens in fit": own trackers, own logs."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)
        self.tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="another_name")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker, self.mae]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        self.mae.update_state(tf.one_hot(y, 3), y_pred)
        # Eagerly, only the name tells which values are results of metrics.
        name = self.mae.name if self.run_eagerly else "mae"
        return {"loss": self.tracker.result(), name: self.mae.result(), "loss_now": loss}


def custom_step(**arguments: Any) -> Any:
    model = CustomStep()
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **arguments,
    )
    return model


class GuideStep(keras.Sequential):
    """The `train_step` of Keras's guide: the metrics of `compile` are one group of the logs."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


def guide_step() -> Any:
    model = GuideStep([keras.Input((6,)), layers.Dense(3)])
    compile_small(model, metrics=["accuracy", "sparse_categorical_crossentropy"])
    return model


class OwnUpdate(keras.Model):
    """No optimizer is asked, and a `tf.Variable` that Keras does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.smooth = tf.Variable(0.0, trainable=False)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        for variable, gradient in zip(
            self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        self.steps.assign_add(1)
        self.smooth.assign(0.9 * self.smooth + 0.1 * loss)
        return {"loss_now": loss}


def own_update(**arguments: Any) -> Any:
    model = OwnUpdate()
    compile_small(model, **{"metrics": None, **arguments})
    return model


class NoCall(keras.Model):
    """Defines `train_step` and no `call`, as autoencoders often do."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = layers.Dense(4), layers.Dense(6)
        self.tracker = keras.metrics.Mean(name="loss")

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.decoder(self.encoder(x)) - x))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"loss": self.tracker.result()}


def no_call() -> Any:
    model = NoCall()
    model.compile(keras.optimizers.SGD(0.1))
    return model


def preprocessing() -> Any:
    normalise = layers.Normalization()
    normalise.adapt(X)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            normalise,
            layers.Discretization([0.0]),
            layers.CategoryEncoding(2, output_mode="count"),
            layers.Dense(3),
        ]
    )
    compile_small(model)
    return model


def adam(**arguments: Any) -> Any:
    # A large epsilon: for gradients near zero Adam's quotient amplifies rounding.
    return keras.optimizers.Adam(**{"learning_rate": 0.01, "epsilon": 1e-2, **arguments})


# `tests/unit/step/test_true_to_keras.py` has the other features of optimizers.
MODELS: dict[str, Callable[[], Any]] = {
    "run_eagerly": lambda: small(run_eagerly=True),
    "jit_compile": lambda: small(jit_compile=True),
    "no jit_compile": lambda: small(jit_compile=False),
    "steps_per_execution": lambda: small(steps_per_execution=4),
    "clipvalue and ema": lambda: small(
        optimizer=adam(clipvalue=0.01, use_ema=True, ema_momentum=0.9)
    ),
    "subclassed": subclassed,
    "custom train_step": custom_step,
    "custom train_step, eager": lambda: custom_step(run_eagerly=True),
    "train_step of the guide": guide_step,
    "own update": own_update,
    "own update, eager": lambda: own_update(run_eagerly=True),
    "no call": no_call,
    "preprocessing": preprocessing,
    "several metrics": lambda: small(
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")],
        weighted_metrics=["accuracy"],
    ),
}


def arguments_for(name: str) -> dict[str, Any]:
    targets = LABELS
    if name == "subclassed":
        targets = {"a": LABELS, "b": X[:, :1]}
    given = {"x": X, "y": targets, "batch_size": BATCH}
    if name in ("no call",):
        return given
    if name == "subclassed":
        return {**given, "validation_split": 0.25}
    return {**given, "validation_data": (X[:40], LABELS[:40])}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_gives_the_result_of_plain_fit(name: str) -> None:
    found, expected = (
        fit(MODELS[name], lambda: arguments_for(name), elastic) for elastic in (True, False)
    )
    assert_same(found, expected)
    if name.startswith("own update"):
        assert found[0].steps.numpy() == expected[0].steps.numpy() > 0
        np.testing.assert_allclose(found[0].smooth, expected[0].smooth, rtol=1e-4)
