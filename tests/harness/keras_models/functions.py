"""Steps, helpers, layers and losses that are `tf.function`s, and conditional parts of steps."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.harness.keras_models.case import (
    TARGETS,
    Arguments,
    Case,
    X,
    arrays,
    dataset,
    regressor,
    validated,
)
from tests.harness.keras_models.train_steps import OwnStep, subclassed, with_loss

layers, ops, random = keras.layers, keras.ops, keras.random


class StepIsFunction(OwnStep):
    """The whole step is a `tf.function`, which AutoGraph converts."""

    @tf.function
    def train_step(self, data: Any) -> Arguments:
        """Adds an entry to the logs by an `if` over tensors."""
        logs = super().train_step(data)
        if tf.reduce_sum(data[0]) > 1e9:  # noqa: SIM108  (a conditional expression is not converted)
            large = tf.constant(1.0)
        else:
            large = tf.constant(0.0)
        return {**logs, "large": large}

    @tf.function
    def test_step(self, data: Any) -> Arguments:
        """Takes Keras's own step, as a `tf.function`."""
        return super().test_step(data)


class StepCallsFunction(keras.Model):
    """Its step calls a `tf.function` that draws a dropout mask."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop = layers.Dense(5, "tanh"), layers.Dropout(0.3)
        self.head = layers.Dense(2)

    def call(self, x: Any, training: bool = False) -> Any:
        """Applies two layers with dropout between them."""
        return self.head(self.drop(self.hidden(x), training=training))

    @tf.function
    def outputs(self, x: Any) -> Any:
        """Returns the outputs as in training."""
        return self(x, training=True)

    def train_step(self, data: Any) -> Arguments:
        """Uses a loss that is a `tf.function` of a fixed signature, and one compiled by XLA."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.outputs(x)
            loss = halved(distance(y, y_pred))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, y_pred)


@tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([None, 2])])
def distance(y_true: Any, y_pred: Any) -> Any:
    """Returns a mean of squares, in a loop that AutoGraph converts."""
    total = tf.zeros([])
    for column in tf.range(2):
        total += tf.reduce_mean(tf.square(y_true[:, column] - y_pred[:, column]))
    return total / 2.0


@tf.function(jit_compile=True)
def halved(value: Any) -> Any:
    """Returns half of the value."""
    return 0.5 * value


class CallIsFunction(layers.Layer):
    """Its `call` is a `tf.function` that draws numbers. It makes variables when it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.drop = layers.Dense(4, "tanh"), layers.Dropout(0.3)

    @tf.function
    def call(self, x: Any, training: bool = False) -> Any:
        """Applies a dense layer and dropout."""
        return self.drop(self.dense(x), training=training)


class SetsItsRate(OwnStep):
    """Sets the learning rate by hand."""

    def train_step(self, data: Any) -> Arguments:
        """Halves the learning rate with each step."""
        steps = ops.cast(self.optimizer.iterations, "float32")
        self.optimizer.learning_rate.assign(0.01 * 0.5**steps)
        return super().train_step(data)


class AppliesAtTimes(OwnStep):
    """Adds up gradients in TensorFlow variables."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps = tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.weights]

    def train_step(self, data: Any) -> Arguments:
        """Applies the sums in every second step."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient / 2)
        self.steps.assign_add(1)
        tf.cond(self.steps % 2 == 0, self._apply_sums, lambda: None)
        return self.compute_metrics(x, y, y_pred)

    def _apply_sums(self) -> None:
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
        for total in self.sums:
            total.assign(tf.zeros_like(total))


class AppliesIfFinite(OwnStep):
    """Its step is a `tf.function`, whose `if` AutoGraph turns into a condition."""

    @tf.function
    def train_step(self, data: Any) -> Arguments:
        """Skips a step whose loss is not finite."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        if tf.math.is_finite(loss):
            self._apply(tape, loss)
        return self.compute_metrics(x, y, y_pred)


class CountsAtTimes(OwnStep):
    """Changes a variable of the model within a condition."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.positive = self.add_weight(
            shape=(), trainable=False, initializer="zeros", name="positive"
        )

    def train_step(self, data: Any) -> Arguments:
        """Counts the batches whose sum is positive."""
        tf.cond(tf.reduce_sum(data[0]) > 0, self._count, lambda: None)
        return super().train_step(data)

    def _count(self) -> None:
        self.positive.assign_add(1.0)


OUTSIDE = keras.Variable(0.0, trainable=False, name="seen_by_all")


class AssignsOutside(OwnStep):
    """Counts in a variable that belongs to no model."""

    def train_step(self, data: Any) -> Arguments:
        """Counts one more step."""
        OUTSIDE.assign_add(1.0)
        return super().train_step(data)


class CountsEvaluations(OwnStep):
    """Changes a variable in evaluations too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches = self.add_weight(
            shape=(), trainable=False, initializer="zeros", name="batches"
        )

    def test_step(self, data: Any) -> Arguments:
        """Counts the batches of evaluations."""
        self.batches.assign_add(1.0)
        return super().test_step(data)


class Masked(keras.Model):
    """`call` takes the examples; only the step makes their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = layers.Dense(5, "tanh"), layers.Dense(6)

    def call(self, x: Any) -> Any:
        """Encodes and decodes the examples."""
        return self.head(self.hidden(x))

    def train_step(self, x: Any) -> Arguments:
        """Learns to restore the values left out."""
        seen = ops.cast(random.uniform(ops.shape(x)) > 0.5, "float32")
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=x, y_pred=self(x * seen, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


PLAIN = arrays(X, TARGETS)
CASES = {
    "a step that is a function": Case(lambda: with_loss(StepIsFunction), validated(X, TARGETS)),
    "a step that is a function, eagerly": Case(
        lambda: with_loss(StepIsFunction, run_eagerly=True), PLAIN
    ),
    "functions of a step": Case(lambda: subclassed(StepCallsFunction, metrics=None), PLAIN),
    "a layer whose call is a function": Case(lambda: regressor(CallIsFunction()), PLAIN),
    "a layer whose call is a function, built by fit": Case(
        lambda: compiled_late(CallIsFunction(), layers.Dense(2)), PLAIN
    ),
    "a loss that is a function": Case(lambda: with_loss(OwnStep, loss=distance), PLAIN),
    "a variable that evaluation changes": Case(
        lambda: with_loss(CountsEvaluations), validated(X, TARGETS)
    ),
    "targets that only the step makes": Case(
        lambda: subclassed(Masked, metrics=None), lambda: {"x": dataset(X)}
    ),
    "a learning rate that the step sets": Case(lambda: with_loss(SetsItsRate), PLAIN),
    "gradients that are applied at times": Case(lambda: with_loss(AppliesAtTimes), PLAIN),
    "gradients that are applied if they are finite": Case(
        lambda: with_loss(AppliesIfFinite), PLAIN
    ),
    "a variable that changes at times": Case(lambda: with_loss(CountsAtTimes), PLAIN),
    "a variable of no model": Case(lambda: with_loss(AssignsOutside), PLAIN),
}


def compiled_late(*stack: keras.layers.Layer) -> keras.Model:
    """Returns a model whose layers are built when the batches are known."""
    model = keras.Sequential(list(stack))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model
