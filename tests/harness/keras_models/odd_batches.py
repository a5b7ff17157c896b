"""Batches whose first dimension does not count the examples, as some `train_step`s take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.keras_models.case import (
    BATCH,
    SERIES,
    SIZE,
    TARGETS,
    Arguments,
    Case,
    X,
    compiled,
    dataset,
    sgd,
)

layers, ops, random = keras.layers, keras.ops, keras.random
STARTS = range(0, SIZE, BATCH)


class Step:
    """Takes steps on one loss."""

    def train_step(self, data: Any) -> Arguments:
        """Follows the gradient of the loss."""
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class Pairs(Step, keras.Model):
    """Learns a metric, as in the example of Keras."""

    def loss_of(self, data: Any) -> Any:
        """Compares anchors with positives, the two entries of the first dimension."""
        anchors, positives = (self(data[0][i], training=True) for i in range(2))
        likeness = ops.matmul(anchors, ops.transpose(positives))
        return self.compute_loss(y=ops.arange(ops.shape(likeness)[0]), y_pred=likeness)


class TimeFirst(Step, keras.Model):
    """Takes series with the time along the first dimension, and targets of the examples."""

    def loss_of(self, data: Any) -> Any:
        """Returns the loss of the last state."""
        x, y = data
        return self.compute_loss(y=y, y_pred=self(ops.transpose(x, (1, 0, 2)), training=True))


class FixMatch(Step, keras.Model):
    """Takes a few labelled examples, each with several unlabelled ones."""

    def loss_of(self, data: Any) -> Any:
        """Adds both losses; unlabelled examples get two views."""
        (x, y), others = data
        views = [self(others + 0.1 * random.normal(ops.shape(others), seed=i)) for i in range(2)]
        supervised = self.compute_loss(y=y, y_pred=self(x, training=True))
        return supervised + ops.mean(ops.square(ops.stop_gradient(views[0]) - views[1]))


class Adjusts(Step, keras.Model):
    """Takes numbers with each batch that belong to no example."""

    def loss_of(self, data: Any) -> Any:
        """Returns the loss of the outputs, adjusted by a table and a temperature."""
        y_pred = self(data["x"], training=True) / data["temperature"] + data["table"][:2]
        return self.compute_loss(y=data["y"], y_pred=y_pred)


def regressor(kind: type[keras.Model], *inner: Any, shape: Any = (6,), **arguments: Any) -> Any:
    """Returns a functional model of a class with a custom step."""
    outputs = inputs = keras.Input(shape)
    for layer in (*inner, layers.Dense(2)):
        outputs = layer(outputs)
    return compiled(kind(inputs, outputs), **{"loss": "mse", "metrics": None, **arguments})


def of_batches(
    make: Callable[[int], Any], *shapes: tuple[int | None, ...]
) -> Callable[[], Arguments]:
    """Returns arguments of `fit`: whole batches, each made from the index of its first example."""
    signature = tuple(map(tf.TensorSpec, shapes))

    def batches() -> Iterator[Any]:
        yield from map(make, STARTS)

    return lambda: {
        "x": _counted(tf.data.Dataset.from_generator(batches, output_signature=signature))
    }


def _counted(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.apply(tf.data.experimental.assert_cardinality(len(STARTS)))


def pairs(start: int) -> Any:
    """Returns the two halves of a batch in one array."""
    return (np.stack(np.split(X[start : start + BATCH], 2)),)


def time_first(start: int) -> Any:
    """Returns all time steps, but fewer examples in the last batch."""
    part = slice(start, start + BATCH)
    return SERIES[part].swapaxes(0, 1), TARGETS[part]


def with_and_without_labels() -> Arguments:
    """Returns four times as many unlabelled as labelled examples, except in the last batch."""
    others = dataset(np.concatenate([X, X[:26] / 2]), batch=16)
    return {"x": tf.data.Dataset.zip(dataset(X[:20], TARGETS[:20], batch=4), others)}


def with_table() -> Arguments:
    """Returns batches of a generator; each also has a table of five numbers and a single number."""

    def batches() -> Iterator[Any]:
        for i, start in enumerate(STARTS):
            part = slice(start, start + BATCH)
            beside = {"table": np.arange(5.0, dtype="float32"), "temperature": np.float32(1 + i)}
            yield {"x": X[part], "y": TARGETS[part], **beside}

    names = {"x": (None, 6), "y": (None, 2), "table": (5,), "temperature": ()}
    signature = {name: tf.TensorSpec(shape) for name, shape in names.items()}
    return {"x": _counted(tf.data.Dataset.from_generator(batches, output_signature=signature))}


CASES = {
    "two halves of a batch in one tensor": Case(
        lambda: regressor(Pairs, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
        of_batches(pairs, (2, None, 6)),
    ),
    "time along the first dimension": Case(
        lambda: regressor(TimeFirst, layers.GRU(4), shape=(6, 3)),
        of_batches(time_first, (6, None, 3), (None, 2)),
    ),
    "four times as many examples without labels": Case(
        lambda: regressor(FixMatch, optimizer=sgd()), with_and_without_labels
    ),
    "a table and a number beside each batch": Case(lambda: regressor(Adjusts), with_table),
}
