"""Steps that need the whole batch, or more than one optimizer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.harness.keras_models.case import (
    LABELS,
    Arguments,
    Case,
    X,
    arrays,
    compiled,
    sgd,
    validated,
)
from tests.harness.keras_models.train_steps import Step, small_network, subclassed

layers, losses, metrics, ops, random = (
    keras.layers,
    keras.losses,
    keras.metrics,
    keras.ops,
    keras.random,
)


def unit(x: Any) -> Any:
    """Scales vectors to length 1."""
    return ops.normalize(x, axis=-1)


class OfPairs(Step, keras.Model):
    """An encoder whose step follows the gradient of `loss_of`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = small_network(4)
        self.tracker = metrics.Mean(name="loss")

    def call(self, x: Any) -> Any:
        """Returns embeddings."""
        return self.encoder(x)

    @property
    def metrics(self) -> list[Any]:
        """The metrics for `fit` to reset."""
        return [self.tracker]

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the loss of all embeddings of a batch together."""
        raise NotImplementedError

    def train_step(self, data: Any) -> Arguments:
        """Takes one step."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        self._apply(tape, loss)
        self.tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}


class ContrastiveViews(OfPairs):
    """Compares two noisy views of each example with those of all others (SimCLR)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the symmetric cross entropy of similarities."""
        views = [unit(self(x + 0.1 * random.normal(ops.shape(x)))) for _ in "ab"]
        similarities = views[0] @ ops.transpose(views[1]) / 0.5
        own = ops.arange(ops.shape(x)[0])
        both = [
            losses.sparse_categorical_crossentropy(own, s, from_logits=True)
            for s in (similarities, ops.transpose(similarities))
        ]
        return ops.mean(both[0] + both[1]) / 2


class HardTriplets(OfPairs):
    """Compares the farthest example of the same class with the nearest of another class."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Asks for a margin between the two."""
        points = self(x)
        squares = ops.sum(ops.square(points), 1)
        distances = squares[:, None] - 2 * points @ ops.transpose(points) + squares[None]
        same = ops.cast(y[:, None] == y[None], "float32")
        hardest = ops.max(distances * same, 1)
        nearest = ops.min(distances + 1e3 * same, 1)
        return ops.mean(ops.relu(hardest - nearest + 1.0))


class DualEncoder(OfPairs):
    """Has two towers, and uses all other pairs of the batch as negatives (retrieval, CLIP)."""

    def __init__(self) -> None:
        super().__init__()
        self.other = small_network(4)

    def loss_of(self, x: Any, y: Any) -> Any:
        """Uses soft targets from the similarities within each tower."""
        a, b = unit(self(x)), unit(self.other(x[:, ::-1]))
        targets = ops.softmax(
            ops.stop_gradient(a @ ops.transpose(a) + b @ ops.transpose(b)), axis=-1
        )
        logits = 3 * a @ ops.transpose(b)
        return ops.mean(losses.categorical_crossentropy(targets, logits, from_logits=True))


class Decorrelated(OfPairs):
    """Draws the correlation of features over the batch to the identity (Barlow twins)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Compares the correlation with the identity."""
        size = ops.cast(ops.shape(x)[0], "float32")
        a, b = (self(x), self(0.9 * x))
        a, b = ((v - ops.mean(v, 0)) / (ops.std(v, 0) + 1e-3) for v in (a, b))
        correlation = ops.transpose(a) @ b / size
        return ops.mean(ops.square(correlation - ops.eye(4)))


class ShuffledExamples(OfPairs):
    """Mixes each example with another one of the batch, in a random order."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the crossentropy on the mixed examples."""
        order = random.shuffle(ops.arange(ops.shape(x)[0]))
        mixed = 0.7 * x + 0.3 * ops.take(x, order, 0)
        return ops.mean(losses.sparse_categorical_crossentropy(y, self(mixed), from_logits=True))


class Adversaries(keras.Model):
    """A generator and a discriminator, each with its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = small_network(6, 3), small_network(1)
        self.loss_fn = losses.BinaryCrossentropy(from_logits=True)
        self.trackers = [metrics.Mean(name=n) for n in ("d_loss", "g_loss")]

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        """Takes both optimizers."""
        super().compile(optimizer=g_optimizer)
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self) -> list[Any]:
        """The metrics for `fit` to reset."""
        return self.trackers

    def train_step(self, real: Any) -> Arguments:
        """Trains the discriminator, then the generator against the new discriminator."""
        size = ops.shape(real)[0]
        fake = self.generator(random.normal((size, 3)))
        both = ops.concatenate([fake, real])
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))])
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            guessed = self.discriminator(self.generator(random.normal((size, 3))))
            g_loss = self.loss_fn(ops.zeros((size, 1)), guessed)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        for tracker, value in zip(self.trackers, (d_loss, g_loss), strict=True):
            tracker.update_state(value)
        return {m.name: m.result() for m in self.metrics}


class TwoSteps(Step, keras.Model):
    """Takes two steps with the same optimizer for each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_network(3)

    def call(self, x: Any) -> Any:
        """Returns logits."""
        return self.network(x)

    def train_step(self, data: Any) -> Arguments:
        """Takes the second step from the result of the first one."""
        super().train_step(data)
        return super().train_step(data)


def adversaries() -> keras.Model:
    """Returns a model with two optimizers."""
    model = Adversaries()
    model.compile(sgd(), sgd())
    # Build the slots here. Otherwise they would be in another order than those of plain fit.
    for network, optimizer in (
        (model.generator, model.optimizer),
        (model.discriminator, model.d_optimizer),
    ):
        optimizer.build(network.trainable_variables)
    return model


class OfKnownSize(OfPairs):
    """Compares all pairs of a batch, whose size the code takes from the static shape."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the mean product of different examples of a batch."""
        size = x.shape[0]
        embedded = unit(self(x))
        products = (embedded @ ops.transpose(embedded)) * (1 - ops.eye(size))
        return ops.sum(products**2) / (size * (size - 1))


class PairsInside(layers.Layer):
    """Adds to each example its distances to the others; counts them by the static shape."""

    def call(self, x: Any) -> Any:
        """Returns the examples and the means of their distances."""
        size = x.shape[0]
        distances = ops.sum((x[:, None] - x[None]) ** 2, -1) * (1 - ops.eye(size))
        return ops.concatenate([x, ops.reshape(ops.mean(distances, 1), (size, 1))], 1)


class OfPairsInside(keras.Model):
    """A model whose `call` counts on the size of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = [layers.Dense(4), PairsInside(), layers.BatchNormalization(), layers.Dense(3)]

    def call(self, x: Any) -> Any:
        """Returns logits."""
        for layer in self.inner:
            x = layer(x)
        return x


def of_one_size() -> Arguments:
    """Returns batches that all have 11 examples, and says so to Keras."""
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(11, drop_remainder=True)
    return {"x": data, "validation_data": data}


def across(kind: type[keras.Model]) -> Case:
    """Returns a case whose loss needs all examples of a batch at once."""
    return Case(
        lambda: subclassed(kind, loss=None, metrics=None),
        arrays(X, LABELS),
    )


CASES = {
    "two views of each example against all others": across(ContrastiveViews),
    "the hardest triplets of a batch": across(HardTriplets),
    "two towers with negatives from the batch": across(DualEncoder),
    "features without correlation in the batch": across(Decorrelated),
    "examples mixed with others in a random order": across(ShuffledExamples),
    "the size of a batch in a train_step": Case(
        lambda: subclassed(OfKnownSize, loss=None, metrics=None),
        lambda: {"x": of_one_size()["x"]},
    ),
    "the size of a batch in a layer": Case(lambda: compiled(OfPairsInside()), of_one_size),
    "a fixed batch size of an input, and a last batch of another size": Case(
        lambda: compiled(keras.Sequential([keras.Input(batch_shape=(16, 6)), small_network(3)])),
        validated(),
    ),
    "two adversaries with an optimizer each": Case(adversaries, arrays(X, None)),
    "two steps per batch": Case(
        lambda: subclassed(
            TwoSteps,
            loss=losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        ),
        arrays(),
    ),
}
