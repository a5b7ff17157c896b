"""What of two models makes them differ in the comparison of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest

from hvd_elastic_keras.keras_internals.model_configuration import configuration


class Scaled(keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """A layer that says nothing of its configuration but its arguments."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def call(self, inputs: Any) -> Any:
        """Returns the inputs, scaled."""
        return self.factor * inputs


def model(
    *,
    activation: Any = "relu",
    rate: float = 0.5,
    factor: float = 2.0,
    optimizer: Any = None,
    smoothing: float = 0.0,
    seed: int = 1,
    shape: tuple[int | None, ...] = (4,),
) -> keras.Model:
    made = keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Bidirectional(keras.layers.LSTM(3)) if len(shape) > 1 else Scaled(factor),
            keras.layers.Dense(3, activation=activation),
            keras.layers.Dropout(rate, seed=seed),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed)),
        ]
    )
    loss = keras.losses.BinaryCrossentropy(label_smoothing=smoothing)
    made.compile(optimizer or keras.optimizers.Adam(1e-3), [loss])
    return made


@pytest.mark.parametrize(
    "change",
    [
        model,
        lambda: model(seed=2),
        lambda: model(activation=keras.activations.relu),
        lambda: model(optimizer=keras.optimizers.Adam(0.5)),
        lambda: model(rate=0.1 * 5 + 1e-12),
    ],
    ids=["again", "another seed", "by function", "another learning rate", "rounding"],
)
def test_models_that_train_alike_are_equal(change: Callable[[], keras.Model]) -> None:
    assert configuration(change()) == configuration(model())


def test_a_model_whose_layer_was_frozen_meanwhile_is_equal() -> None:
    frozen = model()
    frozen.layers[1].trainable = False
    assert configuration(frozen) == configuration(model())


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda: model(activation="tanh"), "Dense"),
        (lambda: model(rate=0.4), "Dropout"),
        (lambda: model(factor=3.0), "Scaled"),
        (lambda: model(optimizer=keras.optimizers.Adam(1e-3, beta_1=0.8)), "Adam"),
        (lambda: model(optimizer=keras.optimizers.SGD(1e-3)), "SGD"),
        (lambda: model(smoothing=0.1), "BinaryCrossentropy"),
    ],
    ids=["activation", "rate", "own layer", "momentum", "optimizer", "loss"],
)
def test_models_that_train_by_other_rules_differ_there(
    change: Callable[[], keras.Model], differs: str
) -> None:
    pairs = zip(configuration(change()), configuration(model()), strict=True)
    assert [mine.partition(":")[0] for mine, other in pairs if mine != other] == [differs]


def test_schedules_of_the_learning_rate_count() -> None:
    one, other = (
        model(optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, steps)))
        for steps in (100, 200)
    )
    assert configuration(one) != configuration(other)


def test_layers_in_layers_count() -> None:
    kinds = [line.partition(":")[0] for line in configuration(model(shape=(None, 2)))]
    assert kinds.count("LSTM") == 2
    assert "InputLayer" not in kinds


@pytest.mark.parametrize("file", ["/home/a/train.py", "/home/b/train.py"])
def test_a_lambda_counts_as_one_wherever_its_file_is(file: str) -> None:
    made: dict[str, Any] = {}
    exec(compile("double = lambda inputs: 2 * inputs", file, "exec"), made)
    layers = [keras.Input((2,)), keras.layers.Lambda(made["double"])]
    other = [keras.Input((2,)), keras.layers.Lambda(lambda inputs: 3 * inputs)]
    assert configuration(keras.Sequential(layers)) == configuration(keras.Sequential(other))
