"""Models that plain Keras builds while it traces their `train_step`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.harness.keras_models.case import Case, X, arrays, validated

FEATURES = X.shape[1]


class Linear(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Weights whose first values follow from how many layers were built before."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(
            shape=(shape[-1], self.units), initializer="random_normal", name="w"
        )
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", name="b")

    def call(self, x: Any) -> Any:
        return ops.matmul(x, self.w) + self.b


class TwoHeads(keras.Model):  # type: ignore[misc]
    """Its step uses the second head first; `call` uses it last, or not at all."""

    def __init__(self, calls_both: bool) -> None:
        super().__init__()
        self.encoder, self.first, self.second = Linear(6), Linear(1), Linear(4)
        self.calls_both = calls_both

    def call(self, x: Any) -> Any:
        encoded = ops.tanh(self.encoder(x))
        first = self.first(encoded)
        return first + ops.mean(self.second(encoded)) if self.calls_both else first

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            encoded = ops.tanh(self.encoder(x))
            second = ops.mean((self.second(encoded) - x[:, :4]) ** 2)
            loss = ops.mean((self.first(encoded) - ops.cast(y[:, None], "float32")) ** 2) + second
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "second": second}


def two_heads(calls_both: bool) -> keras.Model:
    model = TwoHeads(calls_both)
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-2), loss="mse")
    return model


class Adversaries(keras.Model):  # type: ignore[misc]
    """Each of two optimizers trains a part; the one of `compile` trains nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(FEATURES)])
        self.critic = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(1)])

    def compile(self, generates: Any, criticises: Any) -> None:
        super().compile()
        self.generates, self.criticises = generates, criticises

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        with tf.GradientTape() as tape:
            critics = ops.mean(self.critic(self.generator(x))) - ops.mean(self.critic(x))
            critics += 0.1 * ops.mean(self.critic(x) ** 2)
        weights = self.critic.trainable_variables
        gradients = tape.gradient(critics, weights)
        self.criticises.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            generators = -ops.mean(self.critic(self.generator(x)))
        weights = self.generator.trainable_variables
        self.generates.apply(tape.gradient(generators, weights), weights)
        return {"critic": critics, "generator": generators}


def adversaries() -> keras.Model:
    model = Adversaries()
    averaged = keras.optimizers.Adam(
        0.01, epsilon=1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2
    )
    model.compile(averaged, keras.optimizers.Adam(0.01, epsilon=1e-2))
    return model


CASES = {
    "a head that call does not use": Case(lambda: two_heads(calls_both=False), arrays()),
    "heads in another order in call": Case(lambda: two_heads(calls_both=True), validated()),
    "a moving average of one of two networks": Case(adversaries, arrays()),
}
