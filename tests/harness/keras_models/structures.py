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
    """A subclassed model that is not built before `fit`.

    Args:
      form: the type of its outputs' container.
    """

    def __init__(self, form: type = dict) -> None:
        super().__init__()
        self.form = form
        self.body = layers.Dense(5, "tanh")
        self.classes, self.numbers = layers.Dense(3), layers.Dense(2)

    def call(self, x: Any) -> Any:
        """Returns two outputs."""
        hidden = self.body(x)
        outputs = {"classes": self.classes(hidden), "numbers": self.numbers(hidden)}
        return outputs if self.form is dict else self.form(outputs.values())


def heads(form: type) -> keras.Model:
    """Returns a model with losses and metrics in the form of the outputs."""
    model = Heads(form)
    losses: Any = {"classes": CROSSENTROPY(from_logits=True), "numbers": "mae"}
    metrics: Any = {"classes": ["accuracy"], "numbers": ["mse"]}
    weights: Any = {"classes": 1.0, "numbers": 0.4}
    if form is not dict:
        losses, metrics, weights = (list(v.values()) for v in (losses, metrics, weights))
    model.compile(sgd(), loss=losses, metrics=metrics, loss_weights=weights)
    return model


def tickets() -> keras.Model:
    """Returns the functional guide's router of tickets: three named inputs, two named outputs."""
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
    """Returns a model with embeddings beside the predictions; embeddings have no targets."""
    inputs = keras.Input((6,))
    hidden = layers.Dense(4, "tanh", name="hidden")(inputs)
    model = keras.Model(inputs, {"out": layers.Dense(2, name="out")(hidden), "hidden": hidden})
    model.compile(sgd(), loss={"out": "mse", "hidden": None}, metrics={"out": ["mae"]})
    return model


def siamese() -> keras.Model:
    """Returns a model with one tower for two inputs, and the distance between them."""
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
    """Returns a model of users and films, each with a vector; films have a bias."""
    pair = keras.Input((2,), dtype="int64")
    vectors = [layers.Embedding(12, 3)(pair[:, i]) for i in (0, 1)]
    bias = layers.Embedding(12, 1)(pair[:, 1])
    score = layers.Dot(1)(vectors) + bias
    model = keras.Model(pair, layers.Activation("sigmoid")(score))
    model.compile(sgd(learning_rate=0.5), "binary_crossentropy", metrics=["auc"])
    return model


class Nested(keras.Model):
    """Takes a dict that contains a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = layers.Dense(4), layers.Dense(4), layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        """Uses all three inputs."""
        a, (b, c) = inputs["a"], inputs["pair"]
        return self.head(ops.tanh(self.first(a) + self.second(b)) + c[:, :1])


class OwnComputeLoss(keras.Model):
    """Overrides only `compute_loss` and `compute_metrics`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2)
        self.tracker = keras.metrics.MeanAbsoluteError(name="own")

    def call(self, x: Any) -> Any:
        """Returns two numbers per example."""
        return self.dense(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        """Returns a mean of squares, plus an added loss."""
        return ops.mean(ops.square(y - y_pred)) + 0.1 * ops.mean(ops.abs(y_pred))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Adds a metric that is not compiled."""
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        self.tracker.update_state(y, y_pred, sample_weight)
        return {**logs, "own": self.tracker.result()}


def small() -> keras.Model:
    """Returns a small model to test forms of data with."""
    return classifier(layers.Dense(4, "tanh"), weighted_metrics=["accuracy"], metrics=None)


def compiled_regressor(model: keras.Model) -> keras.Model:
    """Compiles a model with a loss for two numbers."""
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


# --- data ----------------------------------------------------------------------------------


class Batches(keras.utils.PyDataset):
    """Batches with weights, in another order in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._random = np.random.default_rng(3)
        self._order = np.arange(SIZE)

    @property
    def num_batches(self) -> int:
        """The number of batches, of which the last one is smaller."""
        return -(-SIZE // BATCH)

    def __getitem__(self, index: int) -> Any:
        """Returns one batch."""
        part = self._order[index * BATCH : (index + 1) * BATCH]
        return X[part], LABELS[part], WEIGHTS[part]

    def on_epoch_end(self) -> None:
        """Shuffles the examples."""
        self._random.shuffle(self._order)


def generated() -> Iterator[Any]:
    """Yields batches without end."""
    while True:
        for start in range(0, SIZE, BATCH):
            yield X[start : start + BATCH], LABELS[start : start + BATCH]


def ragged() -> Arguments:
    """Returns sequences of token numbers of any length."""
    tokens = tf.RaggedTensor.from_tensor(tf.constant(TOKENS), padding=0)
    data = tf.data.Dataset.from_tensor_slices((tokens, LABELS))
    return {"x": data.batch(BATCH), "validation_data": data.batch(9)}


def sparse() -> Arguments:
    """Returns data that is mostly zeros."""
    values = tf.sparse.from_dense(tf.constant(np.where(X > 0.5, X, 0.0)))
    return {"x": tf.data.Dataset.from_tensor_slices((values, LABELS)).batch(BATCH)}


def padded() -> Arguments:
    """Returns sequences padded to the longest of their batch."""
    lengths = (TOKENS > 0).sum(1)
    data = tf.data.Dataset.from_tensor_slices((TOKENS, lengths, LABELS))
    data = data.map(lambda t, n, y: (t[:n], y)).padded_batch(BATCH)
    return {"x": data, "validation_data": data}


def bucketed() -> Arguments:
    """Returns batches of sequences of similar lengths, so that batches differ in size."""
    lengths = (TOKENS > 0).sum(1)
    data = tf.data.Dataset.from_tensor_slices((TOKENS, lengths, LABELS))
    data = data.map(lambda t, n, y: (t[:n], y))
    return {
        "x": data.bucket_by_sequence_length(
            lambda t, y: tf.shape(t)[0], [4, 6], [16, 12, 8], pad_to_bucket_boundary=False
        )
    }


def augmented_stateless() -> Arguments:
    """Returns data with noise seeded by the example's number, shuffled anew in each epoch."""
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).enumerate()

    def noisy(i: Any, example: Any) -> Any:
        x, y = example
        return x + 0.1 * tf.random.stateless_normal([6], tf.stack([i, 3])), y

    return {"x": data.map(noisy).shuffle(SIZE, seed=5).batch(BATCH).prefetch(2)}


def unknown_length() -> Arguments:
    """Returns filtered data; Keras finds the end by reading."""
    data = dataset(X, LABELS).unbatch().filter(lambda x, y: x[2] > -1).batch(BATCH)
    return {"x": data, "validation_data": data}


class Ragged(keras.Model):
    """Takes means over the words of sentences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = layers.Embedding(12, 4), layers.Dense(3)

    def call(self, tokens: Any) -> Any:
        """Pads the sentences inside of the model."""
        full = tokens.to_tensor() if isinstance(tokens, tf.RaggedTensor) else tokens
        there = tf.cast(full > 0, tf.float32)[:, :, None]
        sums = tf.reduce_sum(self.embedding(full) * there, 1)
        return self.head(sums / (tf.reduce_sum(there, 1) + 1e-6))


def read_by_rnn() -> keras.Model:
    """Returns a model of sequences of any length."""
    stack = [layers.Embedding(12, 4), layers.LSTM(3)]
    return classifier(*stack, shape=(None,))


def sparse_classifier() -> keras.Model:
    """Returns a model that takes sparse input."""
    inputs = keras.Input((6,), sparse=True)
    return compiled(keras.Model(inputs, layers.Dense(3)(layers.Dense(4, "tanh")(inputs))))


FULL = 2 * BATCH
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
    "three inputs and two outputs in full batches": Case(
        tickets,
        validated(
            {name: values[:FULL] for name, values in TICKETS.items()},
            {"priority": BINARY[:FULL], "department": LABELS[:FULL]},
        ),
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
    "a dataset of unknown length": Case(
        small, unknown_length, told="how many batches", surplus=True
    ),
    "noise from stateless seeds": Case(small, augmented_stateless, surplus=True),
    "ragged sequences": Case(lambda: compiled(Ragged()), ragged),
    "sparse numbers": Case(sparse_classifier, sparse),
    "buckets of sequences": Case(read_by_rnn, bucketed, told="how many batches", surplus=True),
    "numbers of double precision": Case(
        lambda: regressor(layers.Dense(4, dtype="float64")),
        arrays(X.astype("float64"), TARGETS.astype("float64")),
    ),
    "a batch larger than the data": Case(
        small,
        lambda: {"x": X, "y": LABELS, "batch_size": 100, "shuffle": False},
    ),
}
