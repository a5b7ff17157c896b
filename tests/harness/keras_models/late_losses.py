"""Losses of which nothing is to be seen in the beginning: they are 0, or stand in no example."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.keras_models.case import (
    BATCH,
    REFUSED_IN_PARTS,
    SAME_IN_ONE,
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
    """Of each example, a sum over features."""
    return ops.sum(ops.square(x), -1)


class Annealed(layers.Layer):
    """Adds a sum over examples, with a weight that is 0 in the first epoch.

    Args:
      raw: whether the weight is a `tf.Variable`.
      total: what makes one number of those of the examples.
    """

    def __init__(self, raw: bool = False, total: Any = ops.sum) -> None:
        super().__init__(name="annealed")
        self.beta = (
            tf.Variable(0.0)
            if raw
            else self.add_weight(shape=(), initializer="zeros", trainable=False)
        )
        self.total = total

    def call(self, x: Any) -> Any:
        """Passes the input on."""
        self.add_loss(self.beta * self.total(divergence(x)))
        return x


class Anneal(keras.callbacks.Callback):
    """Raises the weight after each epoch, as in the training of variational autoencoders."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """0 in the first one."""
        own = isinstance(self.model, AnnealedStep)
        holder = self.model if own else self.model.get_layer("annealed")
        holder.beta.assign(RISE * epoch)


class AnnealedStep(keras.Model):
    """A step of one's own, whose loss is a mean and, later, a sum: no term can be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.network = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(2)])
        self.beta = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        """Two numbers per example."""
        return self.network(x)

    def weight(self) -> Any:
        """Of the sum."""
        return self.beta

    def train_step(self, data: Any) -> Arguments:
        """Of both."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred))
            loss += self.weight() * ops.sum(divergence(y_pred))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Warming(AnnealedStep):
    """The weight follows from the steps that the optimizer has taken."""

    def weight(self) -> Any:
        """Rises for 1000 steps."""
        return RISE * ops.minimum(ops.cast(self.optimizer.iterations, "float32") / 1000.0, 1.0)


def own_step(kind: type[AnnealedStep]) -> keras.Model:
    """Compiled and built."""
    model = kind()
    model.compile(sgd())
    model.build((None, 6))
    return model


def labelled(y: Any, y_pred: Any) -> Any:
    """A sum over those examples that have a label: that of the others is 0."""
    return tf.reduce_sum(tf.square(y - y_pred) * tf.cast(y != 0, tf.float32))


def with_labels_from(first: int) -> Any:
    """Targets that are 0 for all examples of each batch before this one."""
    return np.where((np.arange(SIZE) % BATCH >= first)[:, None], TARGETS, 0).astype("float32")


LATE, LATER = with_labels_from(10), TARGETS * (np.arange(SIZE) >= BATCH)[:, None]
ANNEALED = arrays(X, TARGETS, callbacks=[Anneal()])

CASES = {
    "a callback raises the weight of an added sum": Case(
        lambda: regressor(layers.Dense(4), Annealed()), ANNEALED
    ),
    "a callback raises the weight, a variable of TensorFlow's, of an added sum": Case(
        lambda: regressor(layers.Dense(4), Annealed(raw=True)), ANNEALED
    ),
    "a callback raises the weight of a loss across examples": Case(
        lambda: regressor(layers.Dense(4), Annealed(total=ops.max)),
        ANNEALED,
        REFUSED_IN_PARTS,
        told="add_loss of annealed",
    ),
    "a callback raises the weight of a sum in a step of one's own": Case(
        lambda: own_step(AnnealedStep), ANNEALED, REFUSED_IN_PARTS, told="neither the mean nor"
    ),
    "the weight of a sum in a step of one's own follows from the steps": Case(
        lambda: own_step(Warming), arrays(X, TARGETS), REFUSED_IN_PARTS, told="neither the mean nor"
    ),
    "a sum over examples with labels, which come late": Case(
        lambda: regressor(loss=labelled, optimizer=sgd(learning_rate=0.01)), arrays(X, LATE)
    ),
    "a sum over examples with labels, of which the first batch has none": Case(
        lambda: regressor(loss=labelled, optimizer=sgd(learning_rate=0.01)),
        arrays(X, LATER),
        SAME_IN_ONE,
        told="0 for all examples of the first batch",
    ),
}
