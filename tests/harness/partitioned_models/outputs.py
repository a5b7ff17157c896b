"""Several outputs, weights, losses that layers add, and metrics of whole batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.partitioned_models.common import (
    ROWS,
    Made,
    Makers,
    classifier,
    crossentropy,
    features,
    labels,
    layers,
    network,
    normal,
    ops,
)


def metrics_of_whole_batches() -> Made:
    """Returns a model of two classes with such metrics."""
    model = network(units=1)
    model.compile(
        "adam",
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.AUC(from_logits=True),
            keras.metrics.F1Score(threshold=0.5),
            keras.metrics.R2Score(),
        ],
    )
    x, y = features(2)
    return model, (x, y[:, None].astype(x.dtype))


class LargestError(keras.metrics.Metric):
    """The largest error of all rows so far."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.largest = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Updates the maximum."""
        error = ops.max(ops.abs(ops.cast(y_true, y_pred.dtype) - y_pred[:, 0]))
        self.largest.assign(ops.maximum(self.largest, error))

    def result(self) -> Any:
        """Returns the maximum itself."""
        return self.largest


class Confusion(keras.metrics.Metric):
    """A confusion matrix, from which Cohen's kappa is computed."""

    def __init__(self) -> None:
        super().__init__(name="kappa")
        self.matrix = self.add_weight(shape=(3, 3), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts with TensorFlow."""
        chosen = tf.argmax(y_pred, -1)
        counts = tf.math.confusion_matrix(y_true, chosen, 3, dtype=self.matrix.dtype)
        self.matrix.assign_add(counts)

    def result(self) -> Any:
        """Compares the share of right answers with the share expected by chance."""
        total = ops.sum(self.matrix)
        right = ops.trace(self.matrix) / total
        chance = ops.sum(ops.sum(self.matrix, 0) * ops.sum(self.matrix, 1)) / total**2
        return (right - chance) / (1 - chance + 1e-7)


def _in_python(y_true: Any, y_pred: Any) -> Any:
    """Returns Spearman's correlation, computed by NumPy."""

    def correlation(y: Any, p: Any) -> Any:
        ranks = [np.argsort(np.argsort(v, kind="stable"), kind="stable") for v in (y, p)]
        return np.asarray(np.corrcoef(*ranks)[0, 1], p.dtype)

    found = tf.numpy_function(correlation, [y_true, y_pred[:, 0]], y_pred.dtype)
    return tf.ensure_shape(found, [])


def other_metrics() -> Made:
    """Returns a model of three classes with other metrics."""
    model = network()
    model.compile(
        "adam",
        crossentropy(),
        metrics=[
            LargestError(),
            Confusion(),
            _in_python,
            keras.metrics.MeanIoU(3, sparse_y_pred=False),
        ],
    )
    return model, features()


def metrics_at_thresholds() -> Made:
    """Returns a model with metrics such as recall at a precision, with weights of rows."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(2, "sigmoid")])
    kinds = keras.metrics
    model.compile(
        "adam",
        "binary_crossentropy",
        weighted_metrics=[
            kinds.PrecisionAtRecall(0.5, num_thresholds=20),
            kinds.SensitivityAtSpecificity(0.5, num_thresholds=20),
            kinds.AUC(curve="PR", multi_label=True, num_labels=2, num_thresholds=20),
            kinds.Recall(thresholds=[0.2, 0.5]),
        ],
    )
    x, y = normal(ROWS, 6), (normal(ROWS, 2, seed=9) > 0).astype("float32")
    return model, (x, y, np.abs(normal(ROWS, seed=6)))


def outputs_by_name() -> Made:
    """Returns a model of two outputs with a loss, a metric and row weights each."""
    one, other = keras.Input((6,), name="one"), keras.Input((4,), name="other")
    hidden = layers.Concatenate()([layers.Dense(4, "relu")(one), other])
    outputs = {"price": layers.Dense(1)(hidden), "kind": layers.Dense(3)(hidden)}
    model = keras.Model({"one": one, "other": other}, outputs)
    model.compile(
        "adam",
        {"price": "huber", "kind": crossentropy()},
        loss_weights={"price": 0.3, "kind": 2.0},
        metrics={"price": ["mae"], "kind": ["accuracy"]},
    )
    x = {"one": normal(ROWS, 6), "other": normal(ROWS, 4, seed=4)}
    y = {"price": normal(ROWS, 1, seed=5), "kind": labels()}
    weights = {"price": np.abs(normal(ROWS, seed=6)), "kind": 0.5 + labels(2, seed=7)}
    return model, (x, y, weights)


def weights_that_make_a_mean() -> Made:
    """Returns a model whose loss is divided by the sum of the weights.

    Some users want class weights so.
    """
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    model.compile("adam", loss, weighted_metrics=["accuracy"])
    x, y = features()
    return model, (x, y, np.take([2.0, 0.0, 0.7], y).astype(x.dtype))


class Block(layers.Layer):
    """Nested layers that add losses and metrics."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.inner = [layers.Dense(units, activation="relu") for _ in range(2)]
        self.norm = layers.LayerNormalization()
        self.activity = keras.metrics.Mean(name="activity")

    def call(self, x: Any, training: bool = False) -> Any:
        """Adds the deviation of the means over the batch as a loss."""
        for layer in self.inner:
            x = layer(x)
        load = ops.mean(x, axis=0)
        self.add_loss(0.1 * ops.std(load) / (ops.mean(load) + 1e-3))
        if training:
            self.activity.update_state(x)
        return self.norm(x)


class Nested(keras.Model):
    """A subclassed model of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Block(4), Block(3)]
        self.head = layers.Dense(3, activity_regularizer="l2")

    def call(self, x: Any, training: bool = False) -> Any:
        """Calls one block after the other."""
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x)


def nested() -> Made:
    """Returns the nested model, compiled as usual."""
    model = Nested()
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model, features()


class AddsLoss(layers.Layer):
    """An endpoint whose loss is the batch's correlation of outputs with labels."""

    def call(self, inputs: Any) -> Any:
        """Uses Lin's concordance of means and variances."""
        y, p = inputs
        y, p = ops.cast(y, p.dtype), p[:, 0]
        both = ops.mean((y - ops.mean(y)) * (p - ops.mean(p)))
        spread = ops.var(y) + ops.var(p) + (ops.mean(y) - ops.mean(p)) ** 2
        self.add_loss(1 - 2 * both / spread)
        return p


def functional_with_added_loss() -> Made:
    """Returns a model compiled without a loss."""
    x, y = keras.Input((6,)), keras.Input((), dtype="int32")
    model = keras.Model([x, y], AddsLoss()([y, layers.Dense(1)(layers.Dense(4, "tanh")(x))]))
    model.compile("adam")
    return model, (features(),)


def counts_of_a_layer() -> Made:
    """Returns a model that counts the largest features of rows in a weight that is not trained."""

    class Counts(layers.Layer):
        def build(self, shape: Any) -> None:
            self.n = self.add_weight(shape=(6,), initializer="zeros", trainable=False)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.n.assign(self.n + ops.sum(ops.one_hot(ops.argmax(x, -1), 6), 0))
            return x

    return classifier(Counts()), features()


def features_of_many_kinds() -> Made:
    """Returns a deep and cross network (Wang, 2021).

    It has factors of embeddings, crosses, and a wide part.
    """
    inputs, ids = keras.Input((6,)), keras.Input((3,), dtype="int32")
    table = layers.Embedding(9, 4)(ids)
    total = ops.sum(table, axis=1)
    pairs = 0.5 * (total**2 - ops.sum(table**2, axis=1))
    both = layers.Concatenate()([inputs, layers.Flatten()(table), pairs])
    crossed = both * layers.Dense(22)(both) + both
    wide = ops.sum(layers.Embedding(9, 1)(ids), axis=1)
    hidden = layers.BatchNormalization()(layers.Dense(4, "relu")(crossed))
    outputs = layers.Dense(1)(hidden) + wide
    model = keras.Model([inputs, ids], outputs)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adagrad(0.05), loss, metrics=[keras.metrics.AUC()])
    words = np.random.default_rng(5).integers(0, 9, (ROWS, 3)).astype("int32")
    return model, ((normal(ROWS, 6), words), labels(2)[:, None].astype("float32"))


class Graph(layers.Layer):
    """Neighbours within the batch by attention over distances: a kernel between rows."""

    def build(self, shape: Any) -> None:
        """Makes a width."""
        self.width = self.add_weight(shape=(), initializer="ones")

    def call(self, x: Any) -> Any:
        """Returns, for each row, a mean over all rows."""
        distances = ops.sum((x[:, None, :] - x[None, :, :]) ** 2, axis=-1)
        weights = ops.softmax(-distances * self.width, axis=-1)
        return ops.matmul(weights, x)


def neighbours() -> Made:
    """Returns a classifier with such a layer."""
    return classifier(layers.Dense(4, "tanh"), Graph()), features()


MODELS: Makers = {
    "metrics of whole batches": metrics_of_whole_batches,
    "other metrics of whole batches": other_metrics,
    "metrics at thresholds": metrics_at_thresholds,
    "outputs by name": outputs_by_name,
    "weights that make a mean": weights_that_make_a_mean,
    "layers in layers": nested,
    "a loss that an endpoint adds": functional_with_added_loss,
    "counts of a layer": counts_of_a_layer,
    "features of many kinds": features_of_many_kinds,
    "neighbours in the batch": neighbours,
}
