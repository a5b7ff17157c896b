"""Batches, networks and the training step that many models share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops
ROWS, LENGTH, WORDS = 12, 3, 9
Made = tuple[keras.Model, tuple[Any, ...]]
"""A model, and a batch."""
Makers = dict[str, Callable[[], Made]]


def normal(*shape: int, seed: int = 3) -> Any:
    """Returns normally distributed numbers in Keras's default type."""
    return np.random.default_rng(seed).normal(size=shape).astype(keras.config.floatx())


def labels(classes: int = 3, seed: int = 3) -> Any:
    """Returns a class for each row."""
    return np.random.default_rng(seed).integers(0, classes, ROWS).astype("int32")


def features(classes: int = 3) -> tuple[Any, Any]:
    """Returns six numbers and a class for each row."""
    return normal(ROWS, 6), labels(classes)


def images() -> tuple[Any, Any]:
    """Returns an image of 8 times 8 pixels and a class for each row."""
    return normal(ROWS, 8, 8, 2), labels()


def tokens() -> tuple[Any, Any]:
    """Returns a text of three words and a class for each row; some words are 0."""
    words = np.random.default_rng(5).integers(0, WORDS, (ROWS, LENGTH)).astype("int32")
    return words, labels()


def network(kind: type[keras.Model] = keras.Model, units: int = 3) -> keras.Model:
    """Returns a model of two dense layers for `features`."""
    inputs = keras.Input((6,))
    return kind(inputs, layers.Dense(units)(layers.Dense(8, activation="tanh")(inputs)))


def crossentropy() -> Any:
    """Returns the crossentropy loss of logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def crossentropies(y: Any, logits: Any) -> Any:
    """Returns the crossentropy of each row."""
    return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)


class _Step:
    """A custom training step around `loss_of`."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the loss; subclasses define it."""
        raise NotImplementedError

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes a step as Keras's guide writes it."""
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        variables = self.trainable_variables
        self.optimizer.apply(self.changed(tape.gradient(loss, variables)), variables)
        self.after_apply()
        return {"loss": loss}

    def changed(self, gradients: Any) -> Any:
        """Returns the gradients to apply."""
        return gradients

    def after_apply(self) -> None:
        """Does something at the end of the step; nothing by default."""


class WithLoss(_Step, keras.Model):
    """A functional model with such a step."""


class Subclassed(_Step, keras.Model):
    """A model of networks with such a step. Keras lets no class be functional and subclassed."""


def of_kind(kind: type[keras.Model], optimizer: Any = "adam") -> Callable[[], Made]:
    """Returns a maker of a model for `features`. `optimizer` is a name, or makes an optimizer."""

    def make() -> Made:
        model = network(kind)
        made = optimizer if isinstance(optimizer, str) else optimizer()
        model.compile(made, crossentropy())
        return model, features()

    return make


def classifier(*inner: keras.layers.Layer, shape: Any = (6,), optimizer: Any = "adam") -> Any:
    """Returns a model of some layers and three classes."""
    model = keras.Sequential([keras.Input(shape), *inner, layers.Dense(3)])
    model.compile(optimizer, crossentropy(), metrics=["accuracy"])
    return model


class Networks(keras.Model):
    """Networks with an optimizer each, in a custom training step."""

    def __init__(self, **networks: keras.Model) -> None:
        super().__init__()
        self.networks = networks
        self.seeds = keras.random.SeedGenerator(7)

    def compile(self, rate: float = 0.01) -> None:
        """Makes an Adam optimizer for each network."""
        super().compile(loss=None)
        self.optimizers = {name: keras.optimizers.Adam(rate) for name in self.networks}
        for name, part in self.networks.items():
            self.optimizers[name].build(part.trainable_variables)

    def apply(self, name: str, tape: tf.GradientTape, loss: Any) -> None:
        """Applies the gradients of a loss to one of the networks."""
        variables = self.networks[name].trainable_variables
        self.optimizers[name].apply(tape.gradient(loss, variables), variables)

    def noise(self, rows: Any, size: int = 4) -> Any:
        """Returns normally distributed numbers."""
        return keras.random.normal((rows, size), seed=self.seeds)
