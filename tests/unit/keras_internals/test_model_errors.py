"""What does not fit together is answered with what to change, by `fit` and `Trainer` alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.api.trainer import Trainer
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.training_config import TrainingConfig

layers = keras.layers
X = np.random.default_rng(0).random((16, 4)).astype("float32")
LABELS = np.arange(16) % 3
ONE_HOT = np.eye(3, dtype="float32")[LABELS]


def classes(loss: Any) -> Any:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(inputs))
    model.compile("sgd", loss)
    return model


def two_outputs(loss: Any) -> Any:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"a": layers.Dense(1)(inputs), "b": layers.Dense(1)(inputs)})
    model.compile("sgd", loss)
    return model


def wants_integers(y: Any, y_pred: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(y, [-1]), y_pred)


def wants_indices(y: Any, y_pred: Any) -> Any:
    return keras.losses.categorical_crossentropy(tf.one_hot(y, 3), y_pred)


class Broken(keras.Model):
    def call(self, x: Any) -> Any:
        return {"width": x}["height"]


class Static(layers.Layer):
    def call(self, x: Any) -> Any:
        return x + tf.zeros([x.shape[0], 4])


def own(*parts: Any) -> Any:
    model = keras.Sequential([*parts, layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


SPARSE = "sparse_categorical_crossentropy"
CASES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "integers wanted": (lambda: classes(wants_integers), LABELS, "tf.cast(y_true, tf.int64)"),
    "indices wanted": (lambda: classes(wants_indices), LABELS, "tf.cast(y_true, tf.int64)"),
    "one-hot, sparse wanted": (lambda: classes(SPARSE), ONE_HOT, "np.argmax(y, -1)"),
    "sparse, one-hot wanted": (
        lambda: classes("categorical_crossentropy"),
        LABELS,
        "SparseCategoricalCrossentropy or keras.utils.to_categorical(y)",
    ),
    "a label out of range": (lambda: classes(SPARSE), LABELS + 7, "Number the classes from 0"),
    "a negative label": (lambda: classes(SPARSE), LABELS - 1, "Number the classes from 0"),
    "NaN for a label": (lambda: classes(SPARSE), LABELS * np.nan, "Targets are NaN"),
    "other shapes": (lambda: classes("mse"), X, "Give targets of the shape"),
    "no loss": (lambda: classes(None), LABELS, "a loss"),
    "one target for two outputs": (
        lambda: two_outputs("mse"),
        X[:, :1],
        'compile(loss={"a": "mse", "b": "mse"}) and y={"a": ..., "b": ...}',
    ),
    "a loss without an output": (
        lambda: two_outputs({"a": "mse", "c": "mse"}),
        {"a": X[:, 0], "b": X[:, 1]},
        "losses by the same names",
    ),
    "a target without an output": (
        lambda: two_outputs({"a": "mse", "b": "mse"}),
        {"a": X[:, 0], "c": X[:, 1]},
        "a dict with the same keys",
    ),
    "targets in another structure": (
        lambda: two_outputs({"a": "mse", "b": "mse"}),
        X[:, :1],
        "a dict with the same keys",
    ),
    "an error in call": (lambda: own(Broken()), X[:, :1], "KeyError"),
    "a static size": (lambda: own(Static()), X[:, :1], "keras.ops.shape(x)[0]"),
}


def by_fit(model: Any, y: Any) -> None:
    model.fit(X, y, batch_size=8, verbose=0, callbacks=[ElasticCallback()])


def by_trainer(model: Any, y: Any) -> None:
    trainer = Trainer(model, (X, y), config=TrainingConfig(global_batch_size=8))
    trainer.try_first_examples()


@pytest.mark.parametrize("train", [by_fit, by_trainer])
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_answered_with_what_to_change(case: str, train: Any) -> None:
    make, y, words = CASES[case]
    with pytest.raises(ConfigurationError) as caught:
        train(make(), y)
    text = str(caught.value)
    assert words in text, text
    assert "Change the data or the model's Input" not in text
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text


def build_model() -> Any:
    return own()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (build_model, "model is the function build_model, expected a keras.Model: give build_mod"),
        (lambda: None, "model is the function <lambda>, expected a keras.Model: give what it re"),
        (Broken, "model is the class Broken, expected a keras.Model: give Broken()."),
        ("resnet50", "model is a builtins.str, expected a keras.Model."),
        (None, "model is a builtins.NoneType, expected a keras.Model."),
    ],
)
def test_something_else_in_place_of_a_model_is_named(given: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Trainer(given, (X, LABELS))
    assert str(caught.value).startswith(words)
