"""Steps whose meaning nobody could find by trying a few examples: each is a whole batch's program.

Each function makes a compiled model and a batch, as people write them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops
ROWS, LENGTH = 12, 3
Made = tuple[keras.Model, tuple[Any, ...]]


def _features(classes: int = 3) -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 6)).astype(keras.config.floatx())
    return x, random.integers(0, classes, ROWS).astype("int32")


def _images() -> tuple[Any, Any]:
    random = np.random.default_rng(4)
    x = random.normal(size=(ROWS, 8, 8, 2)).astype(keras.config.floatx())
    return x, random.integers(0, 3, ROWS).astype("int32")


def _tokens() -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    tokens = random.integers(0, 9, (ROWS, LENGTH)).astype("int32")
    return tokens, random.integers(0, 3, ROWS).astype("int32")


def _network(kind: type[keras.Model] = keras.Model, units: int = 3) -> keras.Model:
    inputs = keras.Input((6,))
    return kind(inputs, layers.Dense(units)(layers.Dense(8, activation="tanh")(inputs)))


def _crossentropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class WithLoss(keras.Model):
    """A step of one's own, round `loss_of`."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """To be replaced."""
        raise NotImplementedError

    def train_step(self, data: Any) -> dict[str, Any]:
        """As the guide has it."""
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        variables = self.trainable_variables
        self.optimizer.apply(self.changed(tape.gradient(loss, variables)), variables)
        return {"loss": loss}

    def changed(self, gradients: Any) -> Any:
        """What is applied."""
        return gradients


class Flooding(keras.Model):
    """The loss is linear until it is small."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Ishida et al., "Do we need zero training loss after achieving zero training error?"."""
        return ops.abs(super().compute_loss(*args, **kwargs) - 1.2) + 1.2


class Clips(WithLoss):
    """Clips by the norm of all gradients."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Plain."""
        return self.compute_loss(y=y, y_pred=self(x, training=True))

    def changed(self, gradients: Any) -> Any:
        """Always: the norm is larger than that."""
        return tf.clip_by_global_norm(gradients, 0.05)[0]


class IgnoresLabels(WithLoss):
    """A mean over the labels that are not 0."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Of whatever number."""
        each = keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True)
        counts = tf.cast(y != 0, each.dtype)
        mean = tf.reduce_sum(each * counts) / tf.reduce_sum(counts)
        return mean + 0.1 * tf.reduce_mean(tf.boolean_mask(each, y == 1))


class Contrasts(WithLoss):
    """Two views of each example against all others (Chen et al., "SimCLR", 2020)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Temperature 0.5."""
        rows = tf.shape(x)[0]
        views = tf.concat([self(0.9 * x, training=True), self(x + 0.1, training=True)], 0)
        views = tf.math.l2_normalize(views, 1)
        alike = tf.matmul(views, views, transpose_b=True) / 0.5
        alike -= 1e9 * tf.eye(2 * rows, dtype=alike.dtype)
        others = tf.concat([tf.range(rows, 2 * rows), tf.range(rows)], 0)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=others, logits=alike)
        )


class PenalizesGradients(WithLoss):
    """Of outputs with respect to inputs (Gulrajani et al., "WGAN-GP", 2017)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Norms of single examples."""
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = self(x, training=True)
        squares = tf.reduce_sum(tape.gradient(outputs, x) ** 2, 1)
        return tf.reduce_mean((tf.sqrt(squares + 1e-6) - 1.0) ** 2) + tf.reduce_mean(outputs)


class Sharpness(keras.Model):
    """Applies twice: up, and down from there (Foret et al., "SAM", 2021)."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """The weights are moved by hand, and moved back."""
        x, y = data
        variables = self.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        first = tape.gradient(loss, variables)
        scale = 0.05 / (tf.linalg.global_norm(first) + 1e-12)
        for variable, gradient in zip(variables, first, strict=True):
            variable.assign_add(scale * gradient)
        with tf.GradientTape() as tape:
            other = self.compute_loss(y=y, y_pred=self(x, training=True))
        second = tape.gradient(other, variables)
        for variable, gradient in zip(variables, first, strict=True):
            variable.assign_sub(scale * gradient)
        self.optimizer.apply(second, variables)
        return {"loss": loss, "sharp": other - loss}


class SkipsBadBatches(Clips):
    """The optimizer is asked only if the loss is small enough; the rate falls with each step."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """A condition round `apply`."""
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.learning_rate.assign(self.optimizer.learning_rate * 0.5)
        tf.cond(loss < 100.0, lambda: self._applied(gradients), lambda: False)
        return {"loss": loss}

    def _applied(self, gradients: Any) -> bool:
        self.optimizer.apply(gradients, self.trainable_variables)
        return True


class Counter(layers.Layer):
    """Counts the examples that it has seen."""

    def build(self, shape: Any) -> None:
        """One number."""
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        """A little less with each."""
        self.seen.assign_add(tf.cast(tf.shape(x)[0], x.dtype))
        return x / (1.0 + 0.01 * self.seen)


class Codebook(layers.Layer):
    """Learns by a moving average (van den Oord et al., "VQ-VAE", 2017)."""

    def build(self, shape: Any) -> None:
        """Five entries."""
        self.entries, self.sums = (
            self.add_weight(shape=(5, shape[-1]), initializer="uniform", trainable=False)
            for _ in range(2)
        )
        self.counts = self.add_weight(shape=(5,), initializer="ones", trainable=False)

    def call(self, x: Any) -> Any:
        """The next entry, with the gradient of the input."""
        distance = tf.reduce_sum((x[:, None] - self.entries) ** 2, -1)
        chosen = tf.one_hot(tf.argmin(distance, 1), 5, dtype=x.dtype)
        entry = tf.matmul(chosen, self.entries)
        self.counts.assign(0.9 * self.counts + 0.1 * tf.reduce_sum(chosen, 0))
        self.sums.assign(0.9 * self.sums + 0.1 * tf.matmul(chosen, x, transpose_a=True))
        self.entries.assign(self.sums / (self.counts[:, None] + 1e-3))
        self.add_loss(0.25 * tf.reduce_mean((tf.stop_gradient(entry) - x) ** 2))
        return x + tf.stop_gradient(entry - x)


class Adversaries(keras.Model):
    """Two networks, two optimizers, two applications (Radford et al., "DCGAN", 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(4 * 4 * 3),
                layers.Reshape((4, 4, 3)),
                layers.BatchNormalization(),
                layers.LeakyReLU(),
                layers.Conv2DTranspose(2, 4, strides=2, padding="same", activation="tanh"),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 2)),
                layers.Conv2D(4, 4, strides=2),
                layers.LeakyReLU(),
                layers.Dropout(0.3),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        self.seeds = keras.random.SeedGenerator(7)
        self.loss_of_generator = keras.metrics.Mean(name="g")

    def compile(self) -> None:
        """Adam for both."""
        super().compile(loss=None)
        self.optimizers = [keras.optimizers.Adam(0.01) for _ in range(2)]
        for optimizer, network in zip(self.optimizers, self._networks, strict=True):
            optimizer.build(network.trainable_variables)

    @property
    def _networks(self) -> tuple[keras.Model, keras.Model]:
        return self.discriminator, self.generator

    def train_step(self, data: Any) -> dict[str, Any]:
        """Real and made images in one batch."""
        real = data[0]
        rows = tf.shape(real)[0]
        judged = keras.losses.BinaryCrossentropy(from_logits=True)
        made = self.generator(self._noise(rows), training=True)
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], 0)
        with tf.GradientTape() as tape:
            loss = judged(labels, self.discriminator(tf.concat([made, real], 0), training=True))
        self._apply(0, tape, loss)
        with tf.GradientTape() as tape:
            made = self.generator(self._noise(rows), training=True)
            loss = judged(tf.zeros((rows, 1)), self.discriminator(made, training=True))
        self._apply(1, tape, loss)
        self.loss_of_generator.update_state(loss)
        return {"g": self.loss_of_generator.result()}

    def _noise(self, rows: Any) -> Any:
        return keras.random.normal((rows, 4), seed=self.seeds)

    def _apply(self, which: int, tape: tf.GradientTape, loss: Any) -> None:
        variables = self._networks[which].trainable_variables
        self.optimizers[which].apply(tape.gradient(loss, variables), variables)


def flooding() -> Made:
    model = _network(Flooding)
    model.compile("adam", _crossentropy())
    return model, _features()


def of_kind(kind: type[keras.Model], optimizer: str = "adam") -> Callable[[], Made]:
    def make() -> Made:
        model = _network(kind)
        model.compile(optimizer, _crossentropy())
        return model, _features()

    return make


def counter_and_codebook() -> Made:
    model = keras.Sequential(
        [keras.Input((6,)), Counter(), layers.Dense(4), Codebook(), layers.Dense(3)]
    )
    model.compile("adam", _crossentropy(), metrics=["accuracy"])
    return model, _features()


def batch_norm() -> Made:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(4, 2, use_bias=False),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), _crossentropy(), metrics=["accuracy"])
    return model, _images()


def dice() -> Made:
    def loss(y: Any, p: Any) -> Any:
        y = ops.cast(y, p.dtype)
        both = ops.sum(y) + ops.sum(p)
        overlap = (2 * ops.sum(y * p) + 1) / (both + 1)
        return ops.mean(keras.losses.binary_crossentropy(y, p)) + 1 - overlap

    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid"),
        ]
    )
    model.compile("adam", loss, metrics=[keras.metrics.BinaryIoU()])
    x, _ = _images()
    return model, (x, (x[..., :1] > 0.2).astype(x.dtype))


def embeddings() -> Made:
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(9, 4),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.01), _crossentropy())
    return model, _tokens()


def recurrent() -> Made:
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.LSTM(3, return_sequences=True),
            layers.GRU(2, go_backwards=True),
            layers.Dense(3),
        ]
    )
    model.compile("adam", _crossentropy())
    return model, _tokens()


def attention() -> Made:
    inputs = keras.Input((LENGTH,), dtype="int32")
    hidden = layers.Embedding(9, 4)(inputs)
    hidden += layers.MultiHeadAttention(2, 3)(hidden, hidden, use_causal_mask=True)
    hidden = layers.LayerNormalization()(hidden)
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(keras.optimizers.AdamW(0.01), _crossentropy())
    return model, _tokens()


def metrics_of_whole_batches() -> Made:
    model = _network(units=1)
    model.compile(
        "adam",
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.AUC(from_logits=True),
            keras.metrics.F1Score(threshold=0.5),
            keras.metrics.R2Score(),
        ],
    )
    x, y = _features(2)
    return model, (x, y[:, None].astype(x.dtype))


def half_precision() -> Made:
    policy = keras.mixed_precision.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh", dtype=policy),
            layers.BatchNormalization(dtype=policy),
            layers.Dense(3, dtype="float32"),
        ]
    )
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=1024.0)
    model.compile(scaled, _crossentropy(), metrics=["accuracy"])
    return model, _features()


def accumulation_and_dropout() -> Made:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu", kernel_regularizer="l2"),
            layers.Dropout(0.4),
            layers.GaussianNoise(0.1),
            layers.Dense(3),
        ]
    )
    optimizer = keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=2, global_clipnorm=0.5, use_ema=True
    )
    model.compile(optimizer, _crossentropy())
    return model, _features()


def adversaries() -> Made:
    model = Adversaries()
    model.compile()
    return model, _images()[:1]


MODELS: dict[str, Callable[[], Made]] = {
    "flooding": flooding,
    "gradients clipped in the step": of_kind(Clips, "sgd"),
    "a mean over valid labels": of_kind(IgnoresLabels),
    "a contrastive loss": of_kind(Contrasts),
    "a gradient penalty": of_kind(PenalizesGradients),
    "sharpness-aware minimisation": of_kind(Sharpness, "sgd"),
    "a condition round apply, and a learning rate that the step sets": of_kind(SkipsBadBatches),
    "counts and a codebook": counter_and_codebook,
    "batch norm": batch_norm,
    "a Dice loss": dice,
    "embeddings under Adam with clipnorm": embeddings,
    "an LSTM and a GRU backwards, with masks": recurrent,
    "attention": attention,
    "metrics of whole batches": metrics_of_whole_batches,
    "accumulation, dropout, EMA": accumulation_and_dropout,
    "two networks and two optimizers": adversaries,
}
ONE_ROUND = {
    "a condition round apply, and a learning rate that the step sets",
    "accumulation, dropout, EMA",
    "gradients clipped in the step",
    "a gradient penalty",
    "counts and a codebook",
    "an LSTM and a GRU backwards, with masks",
    "attention",
    "metrics of whole batches",
}
"""Nobody waits for anything but the gradients, which travel with all other sums."""
