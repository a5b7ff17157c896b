"""Losses of all kinds: Keras's own, functions, per output, added by layers, by regularizers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.keras_models.case import (
    BINARY,
    LABELS,
    LENGTHS,
    ONE_HOT,
    SERIES,
    SIZE,
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

layers, losses, ops = keras.layers, keras.losses, keras.ops
POSITIVE = np.exp(TARGETS)


# --- one model with a head for each loss ---------------------------------------------------


def heads(activation: str, units: int, given: dict[str, Any]) -> keras.Model:
    """Returns a model with a head for each of these losses."""
    inputs = keras.Input((6,))
    hidden = layers.Dense(5, activation="tanh")(inputs)
    outputs = {n: layers.Dense(units, activation, name=n)(hidden) for n in given}
    model = keras.Model(inputs, outputs)
    model.compile(sgd(learning_rate=0.02), loss=given, loss_weights=dict.fromkeys(given, 0.5))
    return model


REGRESSION = {
    "mse": "mse",
    "mae": losses.MeanAbsoluteError,
    "mape": "mape",
    "msle": losses.MeanSquaredLogarithmicError,
    "huber": lambda: losses.Huber(0.4),
    "log_cosh": "log_cosh",
    "poisson": losses.Poisson,
    "cosine": lambda: losses.CosineSimilarity(axis=-1),
}
CLASSIFICATION = {
    "crossentropy": lambda: losses.CategoricalCrossentropy(label_smoothing=0.1),
    "focal": losses.CategoricalFocalCrossentropy,
    "hinge": losses.CategoricalHinge,
    "divergence": "kl_divergence",
    "binary": losses.BinaryCrossentropy,
    "binary_focal": lambda: losses.BinaryFocalCrossentropy(apply_class_balancing=True),
}
MARGINS = {"hinge": losses.Hinge, "squared": "squared_hinge"}


def _made(given: dict[str, Any]) -> dict[str, Any]:
    return {name: loss() if callable(loss) else loss for name, loss in given.items()}


def _for_each(given: dict[str, Any], targets: Any) -> Any:
    return validated(X, dict.fromkeys(given, targets))


# --- losses of one's own -------------------------------------------------------------------


class Quantile(losses.Loss):
    """The loss of quantile regression."""

    def __init__(self, quantile: float = 0.8, **arguments: Any) -> None:
        super().__init__(name="quantile", **arguments)
        self.quantile = quantile

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns one value per example."""
        error = y_true - y_pred
        return ops.mean(ops.maximum(self.quantile * error, (self.quantile - 1) * error), -1)


def per_example(y: Any, y_pred: Any) -> Any:
    """Returns the root of the squared error of each example."""
    return ops.sqrt(ops.sum(ops.square(y - y_pred), -1) + 0.1)


def mean_over_batch(y: Any, y_pred: Any) -> Any:
    """Returns one number for all examples."""
    return tf.reduce_mean(tf.abs(tf.cast(y, tf.float32) - y_pred))


def sum_over_batch(y: Any, y_pred: Any) -> Any:
    """Returns a sum where a mean is usual."""
    return tf.reduce_sum(tf.square(y - y_pred))


def mean_and_sum(y: Any, y_pred: Any) -> Any:
    """Returns mostly a mean, plus a small sum that a coarse test would miss."""
    return tf.reduce_mean(tf.square(y - y_pred)) + 1e-3 * tf.reduce_sum(tf.abs(y_pred))


def contrast(y: Any, y_pred: Any) -> Any:
    """Compares each example with all others in its batch, as in contrastive learning."""
    similarity = ops.matmul(y_pred, ops.transpose(y_pred))
    own = ops.arange(ops.shape(y_pred)[0])
    return losses.sparse_categorical_crossentropy(own, similarity, from_logits=True)


def root_of_mean(y: Any, y_pred: Any) -> Any:
    """Returns the root of the batch's mean squared error, which is not linear in the examples."""
    return ops.sqrt(ops.mean(ops.square(y - y_pred)))


def correlation(y: Any, y_pred: Any) -> Any:
    """Returns a correlation; values are centred by the means of the batch."""
    a, b = (v - ops.mean(v, 0, keepdims=True) for v in (y, y_pred))
    return -ops.mean(a * b)


# --- losses that layers add ----------------------------------------------------------------


class Penalty(layers.Layer):
    """Adds a loss of its input in one of several forms.

    Args:
      form: how the values of examples become a loss.
    """

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def call(self, x: Any) -> Any:
        """Returns its input."""
        squares = ops.square(x)
        forms = {
            "mean": lambda: 0.1 * ops.mean(squares),
            "sum": lambda: 0.01 * ops.sum(squares),
            "per example": lambda: 0.01 * ops.mean(squares, -1),
            "constant": lambda: 0.1 * ops.convert_to_tensor(1.5),
        }
        self.add_loss(forms[self.form]())
        return x


class Endpoint(layers.Layer):
    """Takes targets as an input, and adds its loss and metric itself."""

    def __init__(self) -> None:
        super().__init__(name="predictions")
        self.loss_fn = losses.SparseCategoricalCrossentropy(from_logits=True)
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def call(self, logits: Any, targets: Any = None, sample_weight: Any = None) -> Any:
        """Returns probabilities."""
        if targets is not None:
            self.add_loss(self.loss_fn(targets, logits))
            self.accuracy.update_state(targets, logits)
        return ops.softmax(logits)


def endpoint() -> keras.Model:
    """Returns a model without a compiled loss, as in the guide on custom layers."""
    inputs = keras.Input((6,), name="inputs")
    targets = keras.Input((), dtype="int32", name="targets")
    predictions = Endpoint()(layers.Dense(3)(inputs), targets)
    model = keras.Model([inputs, targets], predictions)
    model.compile(sgd())
    return model


class CTCEndpoint(layers.Layer):
    """Adds one loss per example, as in the handwriting example."""

    def call(self, y_true: Any, lengths: Any, y_pred: Any) -> Any:
        """Returns the predictions."""
        frames = ops.full_like(lengths, ops.shape(y_pred)[1])
        self.add_loss(ops.ctc_loss(y_true, y_pred, lengths, frames))
        return y_pred


TEXT = np.random.default_rng(5).integers(1, 5, (SIZE, 2)).astype("int32")


def ctc_endpoint() -> keras.Model:
    """Returns a model that has labels and their lengths as inputs."""
    series, text = keras.Input((6, 3)), keras.Input((2,), dtype="int32")
    lengths = keras.Input((), dtype="int32")
    logits = layers.Dense(6)(layers.LSTM(4, return_sequences=True)(series))
    model = keras.Model([series, text, lengths], CTCEndpoint()(text, lengths, logits))
    model.compile(sgd(learning_rate=0.001))
    return model


def ctc() -> keras.Model:
    """Returns a model with Keras's own CTC loss."""
    return compiled(
        keras.Sequential(
            [keras.Input((6, 3)), layers.GRU(4, return_sequences=True), layers.Dense(6)]
        ),
        loss=losses.CTC(),
        metrics=None,
        optimizer=sgd(learning_rate=0.01),
    )


class OrthogonalRegularizer(keras.regularizers.Regularizer):
    """Regularizes the features of a batch, as in the point cloud example."""

    def __call__(self, x: Any) -> Any:
        """Returns a sum over examples of their distance from orthogonality."""
        x = ops.reshape(x, (-1, 2, 2))
        product = ops.einsum("bij,bkj->bik", x, x)
        return 0.01 * ops.sum(ops.square(product - ops.eye(2)))


def regularized() -> keras.Model:
    """Returns a model with regularizers of all kinds for weights."""
    return classifier(
        layers.Dense(5, kernel_regularizer="l2", bias_regularizer=keras.regularizers.L1(0.02)),
        layers.Dense(4, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02)),
        layers.Dense(4, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.02)),
    )


def segmenter(loss: Any) -> keras.Model:
    """Returns a model with a map per example."""
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(4, "sigmoid"), layers.Reshape((2, 2))]
    )
    return compiled(model, loss=loss, metrics=None)


MAPS = (np.random.default_rng(6).random((SIZE, 2, 2)) > 0.5).astype("float32")
PLAIN_ARRAYS = arrays(X, TARGETS)
VALIDATED = validated(X, TARGETS)
ENDPOINT_INPUTS = {"inputs": X, "targets": LABELS}

CASES = {
    "every loss for regression has a head": Case(
        lambda: heads("softplus", 2, _made(REGRESSION)), _for_each(REGRESSION, POSITIVE)
    ),
    "every loss for classes has a head": Case(
        lambda: heads("softmax", 3, _made(CLASSIFICATION)), _for_each(CLASSIFICATION, ONE_HOT)
    ),
    "every loss with a margin has a head": Case(
        lambda: heads("tanh", 1, _made(MARGINS)), _for_each(MARGINS, 2 * BINARY - 1)
    ),
    "a loss ignores a class": Case(
        lambda: classifier(
            loss=losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)
        ),
        arrays(),
    ),
    "the generalized crossentropy": Case(
        lambda: compiled(
            keras.Sequential([keras.Input((6,)), layers.Dense(3, "softmax")]),
            loss=losses.CategoricalGeneralizedCrossEntropy(),
        ),
        validated(),
    ),
    "CTC of Keras": Case(ctc, arrays(SERIES, TEXT)),
    "CTC added by a layer as one loss per example": Case(
        ctc_endpoint, arrays([SERIES, TEXT, np.minimum(LENGTHS, 2).astype("int32")], None)
    ),
    "a Loss subclass with sample weights": Case(
        lambda: regressor(loss=Quantile(0.3)), arrays(X, TARGETS, sample_weight=WEIGHTS)
    ),
    "a loss function with a value per example": Case(
        lambda: regressor(loss=per_example), PLAIN_ARRAYS
    ),
    "a loss function with one value": Case(lambda: regressor(loss=mean_over_batch), PLAIN_ARRAYS),
    "a weighted mean of losses": Case(
        lambda: regressor(loss=losses.MeanSquaredError(reduction="mean_with_sample_weight")),
        arrays(X, TARGETS, sample_weight=WEIGHTS),
    ),
    "a loss with reduction sum": Case(
        lambda: regressor(
            loss=losses.MeanSquaredError(reduction="sum"), optimizer=sgd(learning_rate=0.01)
        ),
        PLAIN_ARRAYS,
    ),
    "a loss with reduction none": Case(
        lambda: regressor(loss=losses.MeanSquaredError(reduction="none")),
        arrays(X, TARGETS, sample_weight=WEIGHTS),
    ),
    "a loss function that sums": Case(
        lambda: regressor(loss=sum_over_batch, optimizer=sgd(learning_rate=0.01)),
        PLAIN_ARRAYS,
    ),
    "a loss function of a mean and a small sum": Case(
        lambda: regressor(loss=mean_and_sum), PLAIN_ARRAYS
    ),
    "a layer adds a sum": Case(lambda: regressor(layers.Dense(4), Penalty("sum")), PLAIN_ARRAYS),
    "layers add a mean, a sum and a value per example": Case(
        lambda: regressor(
            layers.Dense(4),
            Penalty("mean"),
            layers.Dropout(0.3),
            Penalty("sum"),
            layers.Dense(3, activity_regularizer="l2"),
            Penalty("per example"),
        ),
        VALIDATED,
    ),
    "an endpoint layer adds loss and metric": Case(endpoint, arrays(ENDPOINT_INPUTS, None)),
    "a layer has an activity regularizer of one's own": Case(
        lambda: regressor(layers.Dense(4, activity_regularizer=OrthogonalRegularizer())),
        PLAIN_ARRAYS,
    ),
    "an ActivityRegularization layer after a convolution": Case(
        lambda: regressor(
            layers.Conv1D(3, 2),
            layers.ActivityRegularization(l1=0.003),
            layers.Flatten(),
            shape=(6, 3),
        ),
        arrays(SERIES, TARGETS),
    ),
    "weights have regularizers": Case(regularized, validated()),
    "dice over the whole batch": Case(lambda: segmenter(losses.Dice()), arrays(X, MAPS)),
    "dice of each example": Case(lambda: segmenter(losses.Dice(axis=(1, 2))), arrays(X, MAPS)),
    "circle loss of pairs": Case(
        lambda: compiled(
            keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.UnitNormalization()]),
            loss=losses.Circle(gamma=4.0),
            metrics=None,
        ),
        arrays(),
    ),
    "a contrastive loss within the batch": Case(
        lambda: regressor(loss=contrast), arrays(X, TARGETS)
    ),
    "the root of the batch's mean squared error": Case(
        lambda: regressor(loss=root_of_mean), arrays(X, TARGETS)
    ),
    "a correlation centred by the batch": Case(
        lambda: regressor(loss=correlation), arrays(X, TARGETS)
    ),
}
