"""Forms of models and of their input: several inputs and outputs, datasets, generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.keras_models.case import (
    BATCH,
    BINARY,
    CLASS_WEIGHT,
    LABELS,
    SIZE,
    TARGETS,
    TOKENS,
    WEIGHTS,
    Arguments,
    Case,
    X,
    arrays,
    classifier,
    compiled,
    dataset,
    regressor,
    sgd,
    validated,
)

layers, ops = keras.layers, keras.ops
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy
OTHER = np.random.default_rng(3).normal(size=(SIZE, 3)).astype("float32")


# --- models --------------------------------------------------------------------------------


class Heads(keras.Model):
    """Subclassed, not built before `fit`.

    Args:
      form: of its outputs.
    """

    def __init__(self, form: type = dict) -> None:
        super().__init__()
        self.form = form
        self.body = layers.Dense(5, "tanh")
        self.classes, self.numbers = layers.Dense(3), layers.Dense(2)

    def call(self, x: Any) -> Any:
        """Two outputs."""
        hidden = self.body(x)
        outputs = {"classes": self.classes(hidden), "numbers": self.numbers(hidden)}
        return outputs if self.form is dict else self.form(outputs.values())


def heads(form: type) -> keras.Model:
    """Losses and metrics in the form of the outputs."""
    model = Heads(form)
    losses: Any = {"classes": CROSSENTROPY(from_logits=True), "numbers": "mae"}
    metrics: Any = {"classes": ["accuracy"], "numbers": ["mse"]}
    weights: Any = {"classes": 1.0, "numbers": 0.4}
    if form is not dict:
        losses, metrics, weights = (list(v.values()) for v in (losses, metrics, weights))
    model.compile(sgd(), loss=losses, metrics=metrics, loss_weights=weights)
    return model


def tickets() -> keras.Model:
    """Three inputs, two outputs, by names: the functional guide's router of tickets."""
    title, body = keras.Input((None,), name="title"), keras.Input((6,), name="body")
    tags = keras.Input((3,), name="tags")
    read = layers.LSTM(3)(layers.Embedding(12, 4)(title))
    joined = layers.concatenate([read, layers.Dense(4)(body), tags])
    priority = layers.Dense(1, "sigmoid", name="priority")(joined)
    department = layers.Dense(3, name="department")(joined)
    model = keras.Model([title, body, tags], {"priority": priority, "department": department})
    model.compile(
        sgd(),
        loss={"priority": "binary_crossentropy", "department": CROSSENTROPY(from_logits=True)},
        metrics={"department": ["accuracy"]},
        weighted_metrics={"priority": ["accuracy"], "department": []},
        loss_weights={"priority": 1.0, "department": 0.2},
    )
    return model


def one_output_without_loss() -> keras.Model:
    """Embeddings beside the predictions, which nobody has targets for."""
    inputs = keras.Input((6,))
    hidden = layers.Dense(4, "tanh", name="hidden")(inputs)
    model = keras.Model(inputs, {"out": layers.Dense(2, name="out")(hidden), "hidden": hidden})
    model.compile(sgd(), loss={"out": "mse", "hidden": None}, metrics={"out": ["mae"]})
    return model


def siamese() -> keras.Model:
    """One tower for two inputs, and the distance between them."""
    tower = keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh"), layers.Dense(3)])
    left, right = keras.Input((6,)), keras.Input((6,))
    distance = layers.Lambda(
        lambda pair: ops.sqrt(ops.sum(ops.square(pair[0] - pair[1]), 1, keepdims=True) + 1e-6)
    )([tower(left), tower(right)])
    model = keras.Model([left, right], layers.Dense(1, "sigmoid")(distance))

    def contrastive(y: Any, y_pred: Any) -> Any:
        return ops.mean((1 - y) * ops.square(y_pred) + y * ops.square(ops.maximum(1 - y_pred, 0)))

    model.compile(sgd(), contrastive, metrics=["accuracy"])
    return model


def recommender() -> keras.Model:
    """Users and films, each with a vector and a bias."""
    pair = keras.Input((2,), dtype="int64")
    vectors = [layers.Embedding(12, 3)(pair[:, i]) for i in (0, 1)]
    bias = layers.Embedding(12, 1)(pair[:, 1])
    score = layers.Dot(1)(vectors) + bias
    model = keras.Model(pair, layers.Activation("sigmoid")(score))
    model.compile(sgd(learning_rate=0.5), "binary_crossentropy", metrics=["auc"])
    return model


class Nested(keras.Model):
    """Takes a dict that holds a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = layers.Dense(4), layers.Dense(4), layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        """Of all three."""
        a, (b, c) = inputs["a"], inputs["pair"]
        return self.head(ops.tanh(self.first(a) + self.second(b)) + c[:, :1])


class OwnComputeLoss(keras.Model):
    """Overrides `compute_loss` and `compute_metrics` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2)
        self.tracker = keras.metrics.MeanAbsoluteError(name="own")

    def call(self, x: Any) -> Any:
        """Two numbers."""
        return self.dense(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        """A mean of squares, and an added loss."""
        return ops.mean(ops.square(y - y_pred)) + 0.1 * ops.mean(ops.abs(y_pred))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """With one that no `compile` knows."""
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        self.tracker.update_state(y, y_pred, sample_weight)
        return {**logs, "own": self.tracker.result()}


def small() -> keras.Model:
    """For the forms of data."""
    return classifier(layers.Dense(4, "tanh"), weighted_metrics=["accuracy"], metrics=None)


def compiled_regressor(model: keras.Model) -> keras.Model:
    """With the loss of two numbers."""
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


# --- data ----------------------------------------------------------------------------------


class Batches(keras.utils.PyDataset):
    """Batches in another order in each epoch, with weights."""

    def __init__(self) -> None:
        super().__init__()
        self._random = np.random.default_rng(3)
        self._order = np.arange(SIZE)

    @property
    def num_batches(self) -> int:
        """The last one is smaller."""
        return -(-SIZE // BATCH)

    def __getitem__(self, index: int) -> Any:
        """One batch."""
        part = self._order[index * BATCH : (index + 1) * BATCH]
        return X[part], LABELS[part], WEIGHTS[part]

    def on_epoch_end(self) -> None:
        """Shuffles."""
        self._random.shuffle(self._order)


def generated() -> Iterator[Any]:
    """Without an end."""
    while True:
        for start in range(0, SIZE, BATCH):
            yield X[start : start + BATCH], LABELS[start : start + BATCH]


def ragged() -> Arguments:
    """Token numbers, as many as there are."""
    tokens = tf.RaggedTensor.from_tensor(tf.constant(TOKENS), padding=0)
    data = tf.data.Dataset.from_tensor_slices((tokens, LABELS))
    return {"x": data.batch(BATCH), "validation_data": data.batch(9)}


def sparse() -> Arguments:
    """Mostly zeros."""
    values = tf.sparse.from_dense(tf.constant(np.where(X > 0.5, X, 0.0)))
    return {"x": tf.data.Dataset.from_tensor_slices((values, LABELS)).batch(BATCH)}


def padded() -> Arguments:
    """Sequences as long as the longest of their batch."""
    lengths = (TOKENS > 0).sum(1)
    data = tf.data.Dataset.from_tensor_slices((TOKENS, lengths, LABELS))
    data = data.map(lambda t, n, y: (t[:n], y)).padded_batch(BATCH)
    return {"x": data, "validation_data": data}


def bucketed() -> Arguments:
    """Batches of sequences of about the same length, so that batches differ in size."""
    lengths = (TOKENS > 0).sum(1)
    data = tf.data.Dataset.from_tensor_slices((TOKENS, lengths, LABELS))
    data = data.map(lambda t, n, y: (t[:n], y))
    return {
        "x": data.bucket_by_sequence_length(
            lambda t, y: tf.shape(t)[0], [4, 6], [16, 12, 8], pad_to_bucket_boundary=False
        )
    }


def augmented_stateless() -> Arguments:
    """Noise whose seed follows from the example, and an order that is shuffled anew each epoch."""
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).enumerate()

    def noisy(i: Any, example: Any) -> Any:
        x, y = example
        return x + 0.1 * tf.random.stateless_normal([6], tf.stack([i, 3])), y

    return {"x": data.map(noisy).shuffle(SIZE, seed=5).batch(BATCH).prefetch(2)}


def unknown_length() -> Arguments:
    """Filtered; Keras finds the end by reading."""
    data = dataset(X, LABELS).unbatch().filter(lambda x, y: x[2] > -1).batch(BATCH)
    return {"x": data, "validation_data": data}


class Ragged(keras.Model):
    """Means over words of sentences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = layers.Embedding(12, 4), layers.Dense(3)

    def call(self, tokens: Any) -> Any:
        """Filled up inside of the model."""
        full = tokens.to_tensor() if isinstance(tokens, tf.RaggedTensor) else tokens
        there = tf.cast(full > 0, tf.float32)[:, :, None]
        sums = tf.reduce_sum(self.embedding(full) * there, 1)
        return self.head(sums / (tf.reduce_sum(there, 1) + 1e-6))


def read_by_rnn() -> keras.Model:
    """Sequences of any length."""
    stack = [layers.Embedding(12, 4), layers.LSTM(3)]
    return classifier(*stack, shape=(None,))


def sparse_classifier() -> keras.Model:
    """Takes sparse input."""
    inputs = keras.Input((6,), sparse=True)
    return compiled(keras.Model(inputs, layers.Dense(3)(layers.Dense(4, "tanh")(inputs))))


TICKETS = {"title": TOKENS, "body": X, "tags": OTHER}
NESTED = {"a": X, "pair": (OTHER, X[:, :2])}
BOTH = {"classes": LABELS, "numbers": TARGETS}

CASES = {
    "two outputs in a dict": Case(lambda: heads(dict), validated(X, BOTH)),
    "two outputs in a list, weighted each": Case(
        lambda: heads(list), arrays(X, [LABELS, TARGETS], sample_weight=[WEIGHTS, WEIGHTS[::-1]])
    ),
    "three inputs and two outputs by name": Case(
        tickets, validated(TICKETS, {"priority": BINARY, "department": LABELS})
    ),
    "an output without a loss": Case(
        one_output_without_loss, arrays(X, {"out": TARGETS, "hidden": X[:, :4]})
    ),
    "towers that share weights": Case(siamese, arrays((X, X[::-1]), BINARY)),
    "a recommender": Case(recommender, arrays(TOKENS[:, :2], BINARY)),
    "a dict with a tuple in it": Case(
        lambda: compiled_regressor(Nested()), lambda: {"x": dataset(NESTED, TARGETS)}
    ),
    "a loss in compute_loss alone": Case(
        lambda: compiled_regressor(OwnComputeLoss()), validated(X, TARGETS)
    ),
    "class weights": Case(small, arrays(class_weight=CLASS_WEIGHT)),
    "sample weights in training and validation": Case(
        small, arrays(sample_weight=WEIGHTS, validation_data=(X, LABELS, WEIGHTS))
    ),
    "a validation split and its own batch size": Case(
        small, arrays(validation_split=0.3, validation_batch_size=6)
    ),
    "a PyDataset with weights": Case(small, lambda: {"x": Batches(), "shuffle": False}),
    "a generator": Case(small, lambda: {"x": generated(), "steps_per_epoch": 3}),
    "a dataset of unknown length": Case(small, unknown_length, surplus=True),
    "noise from stateless seeds": Case(small, augmented_stateless, surplus=True),
    "ragged sequences": Case(lambda: compiled(Ragged()), ragged),
    "sparse numbers": Case(sparse_classifier, sparse),
    "buckets of sequences": Case(read_by_rnn, bucketed, surplus=True),
    "numbers of double precision": Case(
        lambda: regressor(layers.Dense(4, dtype="float64")),
        arrays(X.astype("float64"), TARGETS.astype("float64")),
    ),
    "a batch larger than the data": Case(
        small,
        lambda: {"x": X, "y": LABELS, "batch_size": 100, "shuffle": False},
    ),
}
