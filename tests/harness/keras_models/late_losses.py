"""Losses that cannot be seen in the beginning: they are 0, or apply to no example yet."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.keras_models.case import (
    BATCH,
    SIZE,
    TARGETS,
    Arguments,
    Case,
    X,
    arrays,
    regressor,
    sgd,
)

layers, ops = keras.layers, keras.ops
RISE = 0.01


def divergence(x: Any) -> Any:
    """Returns a sum over features for each example."""
    return ops.sum(ops.square(x), -1)


class Annealed(layers.Layer):
    """Adds a sum over examples, with a weight that is 0 in the first epoch.

    Args:
      beta: the weight, if it is not to be a Keras variable but, for example, a `tf.Variable`.
      total: turns the values of the examples into one number.
    """

    def __init__(self, beta: Any = None, total: Any = ops.sum) -> None:
        super().__init__(name="annealed")
        if beta is None:
            beta = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.beta = beta
        self.total = total

    def call(self, x: Any) -> Any:
        """Returns its input."""
        self.add_loss(ops.sum(self.beta * self.total(divergence(x))))
        return x


class Switched(layers.Layer):
    """Adds a sum over examples once a callback has begun the second phase."""

    def __init__(self) -> None:
        super().__init__(name="annealed")
        self.beta = tf.Variable(False)

    def call(self, x: Any) -> Any:
        """Returns its input."""
        self.add_loss(tf.where(self.beta, RISE * ops.sum(divergence(x)), 0.0))
        return x


class HeldByLoss(keras.losses.Loss):
    """A mean plus a sum, whose weight a callback raises."""

    def __init__(self) -> None:
        super().__init__(name="annealed")
        self.beta = tf.Variable(0.0, name="beta_of_loss")

    def call(self, y: Any, y_pred: Any) -> Any:
        """Returns one number for the batch."""
        return ops.mean(ops.square(y - y_pred)) + self.beta * ops.sum(divergence(y_pred))


class Anneal(keras.callbacks.Callback):
    """Raises the weight after each epoch, as in the training of variational autoencoders."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets the weight, which is 0 in the first epoch."""
        beta = self._beta()
        value = RISE * epoch
        if beta.dtype == "bool":
            beta.assign(epoch > 0)
        else:
            beta.assign(tf.fill(beta.shape, value))

    def _beta(self) -> Any:
        if isinstance(self.model, AnnealedStep):
            return self.model.beta
        if isinstance(self.model.loss, HeldByLoss):
            return self.model.loss.beta
        if self.model.loss is with_global_weight:
            return BETA
        return self.model.get_layer("annealed").beta


class AnnealedStep(keras.Model):
    """A custom step. Its loss is a mean and later also a sum, in one expression."""

    def __init__(self) -> None:
        super().__init__()
        self.network = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(2)])
        self.beta = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        """Returns two numbers per example."""
        return self.network(x)

    def weight(self) -> Any:
        """Returns the weight of the sum."""
        return self.beta

    def train_step(self, data: Any) -> Arguments:
        """Takes a step on mean and sum."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred))
            loss += self.weight() * ops.sum(divergence(y_pred))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Warming(AnnealedStep):
    """Computes the weight from the number of steps that the optimizer has taken."""

    def weight(self) -> Any:
        """Rises for 1000 steps."""
        return RISE * ops.minimum(ops.cast(self.optimizer.iterations, "float32") / 1000.0, 1.0)


class Cyclic(AnnealedStep):
    """Lets the weight rise again and again."""

    def weight(self) -> Any:
        """Rises from 0 to the largest value in 1000 steps."""
        return RISE * ops.cast(self.optimizer.iterations % 1000, "float32") / 1000.0


class FromList(AnnealedStep):
    """Takes each step's weight from a list, which is as long as the training. For eager steps."""

    weights_of_steps = (0.0,) * 3 + (RISE,) * 9

    def weight(self) -> Any:
        """Looks it up in Python."""
        return self.weights_of_steps[int(self.optimizer.iterations)]


class LateHead(AnnealedStep):
    """The sum is over a head whose weights are 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        last = layers.Dense(2, kernel_initializer="zeros")
        self.network = keras.Sequential([layers.Dense(4, "tanh"), last])


def own_step(kind: type[AnnealedStep], **arguments: Any) -> keras.Model:
    """Returns a model with such a step, compiled and built."""
    model = kind()
    model.compile(sgd(), **arguments)
    model.build((None, 6))
    return model


def labelled(y: Any, y_pred: Any) -> Any:
    """Returns a sum over the examples with a label; the others count as 0."""
    return tf.reduce_sum(tf.square(y - y_pred) * tf.cast(y != 0, tf.float32))


def with_labels_from(first: int) -> Any:
    """Returns targets that are 0 for each batch's examples before this one."""
    return np.where((np.arange(SIZE) % BATCH >= first)[:, None], TARGETS, 0).astype("float32")


BETA, SCALE = tf.Variable(0.0, name="beta"), tf.Variable(0.5, name="scale")
"""Only this module holds these variables."""


def with_global_weight(y: Any, y_pred: Any) -> Any:
    """Returns a mean plus a sum, whose weight a callback raises."""
    return ops.mean(ops.square(y - y_pred)) + BETA * ops.sum(divergence(y_pred))


def scaled_by_global(y: Any, y_pred: Any) -> Any:
    """Returns a mean, scaled by a global variable."""
    return SCALE * ops.mean(ops.square(y - y_pred))


LATE, LATER = with_labels_from(10), TARGETS * (np.arange(SIZE) >= BATCH)[:, None]
ANNEALED = arrays(X, TARGETS, callbacks=[Anneal()])

CASES = {
    "a callback raises the weight of an added sum": Case(
        lambda: regressor(layers.Dense(4), Annealed()), ANNEALED
    ),
    "a callback raises the weight, a variable of TensorFlow's, of an added sum": Case(
        lambda: regressor(layers.Dense(4), Annealed(tf.Variable(0.0))), ANNEALED
    ),
    "a callback raises the weights, a vector, of an added sum": Case(
        lambda: regressor(layers.Dense(4), Annealed(tf.Variable([0.0, 0.0]))), ANNEALED
    ),
    "a callback switches an added sum on": Case(
        lambda: regressor(layers.Dense(4), Switched()), ANNEALED
    ),
    "a callback raises the weight, a global variable, of a sum": Case(
        lambda: regressor(loss=with_global_weight), ANNEALED
    ),
    "a loss is scaled by a global variable": Case(
        lambda: regressor(loss=scaled_by_global), arrays(X, TARGETS)
    ),
    "a callback raises the weight of a sum in a Loss": Case(
        lambda: regressor(loss=HeldByLoss()), ANNEALED
    ),
    "a callback raises the weight of a loss across examples": Case(
        lambda: regressor(layers.Dense(4), Annealed(total=ops.max)),
        ANNEALED,
    ),
    "a callback raises the weight of a sum in a step of one's own": Case(
        lambda: own_step(AnnealedStep), ANNEALED
    ),
    "the weight of a sum stands in a list, one for each step": Case(
        lambda: own_step(FromList, run_eagerly=True),
        arrays(X, TARGETS),
    ),
    "a callback raises the weight of a sum over a head of zeros": Case(
        lambda: own_step(LateHead), ANNEALED
    ),
    "the weight of a sum in a step of one's own rises again and again": Case(
        lambda: own_step(Cyclic), arrays(X, TARGETS)
    ),
    "the weight of a sum in a step of one's own follows from the steps": Case(
        lambda: own_step(Warming), arrays(X, TARGETS)
    ),
    "a sum over examples with labels, which come late": Case(
        lambda: regressor(loss=labelled, optimizer=sgd(learning_rate=0.01)), arrays(X, LATE)
    ),
    "a sum over examples with labels, of which the first batch has none": Case(
        lambda: regressor(loss=labelled, optimizer=sgd(learning_rate=0.01)),
        arrays(X, LATER),
    ),
}
