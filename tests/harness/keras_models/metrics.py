"""Metrics of all kinds, in `compile`, in layers and in custom steps."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.keras_models.case import (
    BINARY,
    LABELS,
    ONE_HOT,
    TARGETS,
    WEIGHTS,
    Case,
    X,
    arrays,
    classifier,
    compiled,
    regressor,
    sgd,
    validated,
)

layers, metrics, ops = keras.layers, keras.metrics, keras.ops


def names(*classes: Any, **arguments: Any) -> list[Any]:
    """Returns an object of each class."""
    return [c(**arguments) for c in classes]


def binary(given: list[Any], **arguments: Any) -> keras.Model:
    """Returns a model of probabilities of `BINARY`."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1, "sigmoid")])
    model.compile(sgd(), "binary_crossentropy", metrics=given, **arguments)
    return model


def softmax(given: list[Any]) -> keras.Model:
    """Returns a model of probabilities of one-hot classes."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, "softmax")])
    model.compile(sgd(), "categorical_crossentropy", metrics=given)
    return model


def confusion() -> keras.Model:
    """Returns a model with all metrics that count true and false predictions."""
    counts = (metrics.TruePositives, metrics.FalsePositives, metrics.TrueNegatives)
    return binary(
        [
            *names(*counts, metrics.FalseNegatives, metrics.Precision, metrics.Recall),
            metrics.Precision(thresholds=[0.3, 0.6], name="at_two"),
            metrics.PrecisionAtRecall(0.5),
            metrics.RecallAtPrecision(0.5),
            metrics.SensitivityAtSpecificity(0.5),
            metrics.SpecificityAtSensitivity(0.5),
            metrics.BinaryAccuracy(threshold=0.4),
            metrics.BinaryCrossentropy(),
            *names(metrics.Hinge, metrics.SquaredHinge, metrics.Poisson),
        ]
    )


def of_classes() -> keras.Model:
    """Returns a model with metrics of several classes, some with a value for each class."""
    return softmax(
        [
            "accuracy",
            metrics.AUC(multi_label=True, name="auc_each"),
            metrics.F1Score(),
            metrics.F1Score(average="macro", threshold=0.4, name="f1_macro"),
            metrics.FBetaScore(beta=2.0, average="micro"),
            metrics.TopKCategoricalAccuracy(2),
            metrics.CategoricalCrossentropy(),
            metrics.KLDivergence(),
            metrics.CategoricalHinge(),
            metrics.OneHotMeanIoU(3),
            metrics.OneHotIoU(3, target_class_ids=[0, 2]),
        ]
    )


def of_numbers() -> keras.Model:
    """Returns a model with metrics of regression."""
    kinds = (metrics.MeanSquaredError, metrics.RootMeanSquaredError, metrics.MeanAbsoluteError)
    more = (metrics.CosineSimilarity, metrics.LogCoshError, metrics.R2Score)
    correlation = (metrics.PearsonCorrelation, metrics.ConcordanceCorrelation)
    return regressor(
        metrics=names(*kinds, *more, *correlation, metrics.MeanAbsolutePercentageError)
    )


def of_labels() -> keras.Model:
    """Returns a model with metrics of labels that are numbers."""
    return compiled(
        keras.Sequential([keras.Input((6,)), layers.Dense(3, "softmax")]),
        loss="sparse_categorical_crossentropy",
        metrics=[
            "acc",
            metrics.SparseTopKCategoricalAccuracy(2),
            metrics.MeanIoU(3, sparse_y_pred=False),
            metrics.IoU(3, target_class_ids=[1], sparse_y_pred=False),
        ],
        weighted_metrics=["accuracy", metrics.SparseCategoricalCrossentropy()],
    )


# --- metrics of one's own ------------------------------------------------------------------


class Counts(metrics.Metric):
    """Accumulates a value of the examples.

    Args:
      form: the value, and how it is accumulated.
    """

    def __init__(self, form: str) -> None:
        super().__init__(name="counts")
        self.form = form
        self.state = self.add_variable((), initializer="zeros", name="state")
        self.number = self.add_variable((), initializer="zeros", name="number")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes a batch into account."""
        size = ops.cast(ops.shape(y_pred)[0], "float32")
        error = ops.cast(ops.sum(ops.abs(y - y_pred), -1), "float32")
        if self.form == "hits":
            self.state.assign(self.state + ops.sum(ops.cast(error < 1.0, "float32")))
        elif self.form == "largest":
            self.state.assign(ops.maximum(self.state, ops.max(error)))
        elif self.form == "last":
            self.state.assign(ops.mean(error))
        elif self.form == "decaying":
            self.state.assign(0.9 * self.state + 0.1 * ops.mean(error))
        elif self.form == "mean of means":
            self.state.assign_add(ops.mean(error))
            self.number.assign_add(1.0)
        elif self.form == "pairs":
            # As in a script that forgot to squeeze: (B,) == (B, 1) compares all with all.
            sign = ops.cast(y_pred[:, :1] > 0, "float32")
            target = ops.cast(y[:, 0] > 0, "float32")
            self.state.assign_add(ops.sum(ops.cast(target == sign, "float32")))
        elif self.form == "squares of sums":
            self.state.assign_add(ops.square(ops.sum(error)))
        if self.form != "mean of means":
            self.number.assign_add(size)

    def result(self) -> Any:
        """Returns the state, or a mean."""
        means = ("hits", "mean of means")
        return self.state / self.number if self.form in means else self.state * 1.0


def counting(form: str) -> keras.Model:
    """Returns a model with one such metric among others."""
    return regressor(metrics=["mae", Counts(form)])


def rmse_of_batch(y: Any, y_pred: Any) -> Any:
    """Returns one value for a batch, not linear in its examples."""
    return ops.sqrt(ops.mean(ops.square(y - y_pred)))


def auc_in_python(y: Any, y_pred: Any) -> Any:
    """Returns a score of a whole batch, computed by NumPy as scripts call scikit-learn."""

    def area(labels: Any, scores: Any) -> Any:
        right, wrong = scores.numpy()[labels.numpy() > 0], scores.numpy()[labels.numpy() <= 0]
        pairs = right[:, None] > wrong[None, :]
        return np.float32(pairs.mean() if pairs.size else 0.5)

    return tf.ensure_shape(tf.py_function(area, [y[:, 0], y_pred[:, 0]], tf.float32), [])


def mean_of_batch(y: Any, y_pred: Any) -> Any:
    """Returns one value for a batch, linear in its examples."""
    return ops.mean(ops.abs(y - y_pred))


def error_of_example(y: Any, y_pred: Any) -> Any:
    """Returns a value per example."""
    return ops.max(ops.abs(y - y_pred), -1)


class InLayer(layers.Layer):
    """Keeps a metric of its input, and a `Mean` with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = metrics.Mean(name="activation")
        self.weighted = metrics.Mean(name="weighted")

    def call(self, x: Any) -> Any:
        """Returns its input."""
        self.mean.update_state(ops.abs(x))
        self.weighted.update_state(ops.sum(x, -1), sample_weight=ops.abs(x[:, 0]))
        return x


class CompiledMetricsWithoutCall(keras.Model):
    """A subclassed model without `call()`, whose steps use the compiled loss and metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = layers.Dense(5, "tanh"), layers.Dense(2)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes a step like Keras's own, over parts of the model."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.head(self.encoder(x))
            loss = self.compute_loss(x, y, y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return self.compute_metrics(x, y, y_pred)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Does the same without gradients."""
        x, y = data
        y_pred = self.head(self.encoder(x))
        self.compute_loss(x, y, y_pred)
        return self.compute_metrics(x, y, y_pred)


class UpdatesEachMetric(CompiledMetricsWithoutCall):
    """Loops over `self.metrics`, as in Keras's guide."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Updates each metric by its name."""
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(ops.mean(ops.square(y - y_pred)))
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class ScoreOfBatch(CompiledMetricsWithoutCall):
    """Keeps a `Mean` of a value computed from all examples of a batch, like an F1 score."""

    def __init__(self) -> None:
        super().__init__()
        self.score = metrics.Mean(name="score")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Returns the compiled metrics and the score."""
        self.score.update_state(ops.max(ops.abs(y - y_pred)))
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "score": self.score.result()}


class LossInFunction(CompiledMetricsWithoutCall):
    """Computes the loss in its own `tf.function`, which hides how it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_fn = keras.losses.MeanSquaredError()
        self.inner = tf.function(self.loss_fn)

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, **_: Any) -> Any:
        """Returns the loss of the function."""
        return self.inner(y, y_pred)


def without_call(kind: type[keras.Model]) -> keras.Model:
    """Returns such a model, compiled as usual."""
    model = kind()
    model.compile(sgd(), "mse", metrics=["mae", "cosine_similarity"])
    return model


def weighted() -> keras.Model:
    """Returns a model with weighted and unweighted metrics."""
    return classifier(
        metrics=["accuracy"], weighted_metrics=["accuracy", "sparse_categorical_crossentropy"]
    )


def own_functions() -> keras.Model:
    """Returns a model with three kinds of functions: per batch, per example, and Keras's own."""
    return regressor(metrics=[mean_of_batch, error_of_example, "mse"])


CASES = {
    "metrics of a confusion matrix": Case(confusion, validated(X, BINARY)),
    "areas under curves": Case(
        lambda: binary([metrics.AUC(), metrics.AUC(curve="PR", num_thresholds=50, name="pr")]),
        validated(X, BINARY),
    ),
    "metrics of several classes": Case(of_classes, validated(X, ONE_HOT)),
    "metrics of labels": Case(of_labels, arrays(X, LABELS, sample_weight=WEIGHTS)),
    "metrics of regression": Case(of_numbers, validated(X, TARGETS)),
    "functions as metrics": Case(own_functions, validated(X, TARGETS)),
    "a function that is no mean over examples": Case(
        lambda: regressor(metrics=[rmse_of_batch, "mae"]),
        validated(X, TARGETS),
    ),
    "a score of a batch in Python": Case(
        lambda: regressor(metrics=[auc_in_python, "mae"]),
        validated(X, TARGETS),
    ),
    "a metric of one's own that counts hits": Case(lambda: counting("hits"), validated(X, TARGETS)),
    "a metric of one's own that averages batches": Case(
        lambda: counting("mean of means"), validated(X, TARGETS)
    ),
    "a metric that keeps the largest": Case(lambda: counting("largest"), validated(X, TARGETS)),
    "a metric that forgets": Case(lambda: counting("decaying"), validated(X, TARGETS)),
    "a metric that counts pairs by broadcasting": Case(
        lambda: counting("pairs"), validated(X, TARGETS)
    ),
    "a metric that squares sums": Case(lambda: counting("squares of sums"), validated(X, TARGETS)),
    "a metric in a layer": Case(
        lambda: regressor(layers.Dense(4), InLayer()), validated(X, TARGETS)
    ),
    "a metric of values near zero in a layer": Case(
        lambda: regressor(layers.LayerNormalization(), InLayer()), arrays(X, TARGETS)
    ),
    "compiled metrics in a model without call": Case(
        lambda: without_call(CompiledMetricsWithoutCall), arrays(X, TARGETS)
    ),
    "a mean of a score of each batch": Case(
        lambda: without_call(ScoreOfBatch),
        arrays(X, TARGETS),
    ),
    "a loss in a function of its own": Case(
        lambda: without_call(LossInFunction), arrays(X, TARGETS)
    ),
    "compiled metrics, updated one by one, without call": Case(
        lambda: without_call(UpdatesEachMetric), arrays(X, TARGETS)
    ),
    "weighted metrics beside others": Case(
        weighted, arrays(X, LABELS, sample_weight=WEIGHTS, validation_data=(X, LABELS, WEIGHTS))
    ),
}
