"""Models of words and of times, which read one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.partitioned_models.common import (
    LENGTH,
    ROWS,
    WORDS,
    Made,
    Makers,
    Subclassed,
    classifier,
    crossentropy,
    labels,
    layers,
    normal,
    ops,
    tokens,
)

TEXT = (LENGTH,)
MANY = 300
"""Rows of a table that is larger than all rows that a batch looks up."""


def _words(**more: Any) -> layers.Layer:
    return layers.Embedding(WORDS, 4, **more)


def _text(*inner: layers.Layer, optimizer: Any = "adam") -> Made:
    """Returns a classifier of texts."""
    stack = [keras.Input(TEXT, dtype="int32"), *inner, layers.Dense(3)]
    model = keras.Sequential(stack)
    model.compile(optimizer, crossentropy())
    return model, tokens()


def _tags(seed: int = 8) -> Any:
    return np.random.default_rng(seed).integers(0, 4, (ROWS, LENGTH)).astype("int32")


def embeddings() -> Made:
    """Returns a model that looks up the same rows of a table repeatedly."""
    adam = keras.optimizers.Adam(0.01, clipnorm=0.01)
    return _text(layers.Embedding(WORDS, 4), layers.Flatten(), optimizer=adam)


def large_table(**more: Any) -> Callable[[], Made]:
    """Returns a maker of a model with a large table, under Adam."""

    def make() -> Made:
        adam = keras.optimizers.Adam(0.01, **more)
        return _text(layers.Embedding(MANY, 4), layers.Flatten(), optimizer=adam)

    return make


def large_table_under_sgd() -> Made:
    """Returns a model whose optimizer changes only the rows that were looked up."""
    sgd = keras.optimizers.SGD(0.1)
    return _text(layers.Embedding(MANY, 4, mask_zero=True), layers.Flatten(), optimizer=sgd)


def large_tables() -> Made:
    """Returns a model with two large tables, one of which is looked up in twice."""
    words = keras.Input(TEXT, dtype="int32")
    shared, other = layers.Embedding(MANY, 4), layers.Embedding(MANY, 2)
    both = layers.Concatenate()([shared(words), other(words), shared(words[:, ::-1] * 7)])
    model = keras.Model(words, layers.Dense(3)(layers.Flatten()(both)))
    model.compile(keras.optimizers.Adagrad(0.1, global_clipnorm=0.05), crossentropy())
    return model, tokens()


def recurrent() -> Made:
    """Returns a recurrent model with masks."""
    inner = layers.LSTM(3, return_sequences=True), layers.GRU(2, go_backwards=True)
    return _text(_words(mask_zero=True), *inner)


def both_ways() -> Made:
    """Returns a bidirectional recurrent model."""
    inner = layers.Bidirectional(layers.GRU(2, return_sequences=True), merge_mode="concat")
    return _text(_words(mask_zero=True), inner, layers.GlobalMaxPooling1D())


def convolutions_in_time() -> Made:
    """Returns a model with ConvLSTM2D and batch norm."""
    inner = layers.ConvLSTM2D(2, 2, padding="same", return_sequences=True)
    model = classifier(
        inner, layers.BatchNormalization(), layers.GlobalAveragePooling3D(), shape=(2, 4, 4, 1)
    )
    return model, (normal(ROWS, 2, 4, 4, 1), labels())


def attention() -> Made:
    """Returns a model with causal attention."""
    inputs = keras.Input(TEXT, dtype="int32")
    hidden = _words()(inputs)
    hidden += layers.MultiHeadAttention(2, 3)(hidden, hidden, use_causal_mask=True)
    hidden = layers.LayerNormalization()(hidden)
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(keras.optimizers.AdamW(0.01), crossentropy())
    return model, tokens()


def entities() -> Made:
    """Returns a model as in keras.io's example.

    Its loss is over places that are not padding, divided by their number.
    """

    def loss(y: Any, p: Any) -> Any:
        each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)(y, p)
        mask = ops.cast(y > 0, each.dtype)
        return ops.sum(each * mask) / ops.sum(mask)

    inputs = keras.Input(TEXT, dtype="int32")
    hidden = _words(mask_zero=True)(inputs) + layers.Embedding(LENGTH, 4)(ops.arange(LENGTH))
    hidden = layers.MultiHeadAttention(2, 2)(hidden, hidden)
    hidden = layers.Dropout(0.1)(hidden)
    model = keras.Model(inputs, layers.Dense(4)(hidden))
    model.compile("adam", loss)
    return model, (tokens()[0], _tags())


def masked_loss() -> Made:
    """Returns a model in which Keras's own mask reaches the loss."""
    model = keras.Sequential(
        [
            keras.Input(TEXT, dtype="int32"),
            _words(mask_zero=True),
            layers.LSTM(3, return_sequences=True),
            layers.Dense(4),
        ]
    )
    model.compile("rmsprop", crossentropy(), metrics=["accuracy"])
    return model, (tokens()[0], _tags())


class Crf(Subclassed):
    """A chain of tags, whose forward sums are a scan (Lafferty et al., 2001)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = _words(), layers.Dense(4)
        self.moves = self.add_weight(shape=(4, 4), initializer="glorot_uniform")

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the negative log likelihood of the tags."""
        scores = self.scores(self.words(x))
        rows, places = tf.meshgrid(tf.range(tf.shape(x)[0]), tf.range(LENGTH), indexing="ij")
        gold = tf.reduce_sum(tf.gather_nd(scores, tf.stack([rows, places, y], -1)), 1)
        gold += tf.reduce_sum(
            tf.gather_nd(self.moves.value, tf.stack([y[:, :-1], y[:, 1:]], -1)), 1
        )

        def forward(sums: Any, emitted: Any) -> Any:
            return tf.reduce_logsumexp(sums[:, :, None] + self.moves, 1) + emitted

        in_time = tf.transpose(scores, [1, 0, 2])
        sums = tf.scan(forward, in_time[1:], initializer=in_time[0])
        return tf.reduce_mean(tf.reduce_logsumexp(sums[-1], 1) - gold)


def crf() -> Made:
    """Returns a chain of tags."""
    model = Crf()
    model.words.build((None, LENGTH))
    model.scores.build((None, LENGTH, 4))
    model.compile("adam")
    model.optimizer.build(model.trainable_variables)
    return model, (tokens()[0], _tags())


def translation() -> Made:
    """Returns encoder, decoder and attention between them, with masks of both."""
    source, target = (keras.Input(TEXT, dtype="int32") for _ in range(2))
    encoded, *state = layers.LSTM(3, return_sequences=True, return_state=True)(
        _words(mask_zero=True)(source)
    )
    decoded = layers.LSTM(3, return_sequences=True)(
        _words(mask_zero=True)(target), initial_state=state
    )
    heard = layers.AdditiveAttention()([decoded, encoded])
    model = keras.Model([source, target], layers.Dense(4)(layers.Concatenate()([decoded, heard])))
    model.compile(keras.optimizers.Nadam(0.01), crossentropy(), metrics=["accuracy"])
    other = np.roll(tokens()[0], 1, 1)
    return model, ((tokens()[0], other), _tags())


class Speech(keras.Model):
    """CTC in a custom training step, with lengths."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Uses the lengths of the speech and of the labels."""
        x, y = data
        with tf.GradientTape() as tape:
            said = self(x, training=True)
            lengths = tf.reduce_sum(tf.cast(y > 0, tf.int32), 1)
            frames = tf.fill([tf.shape(x)[0]], tf.shape(x)[1])
            each = keras.ops.ctc_loss(y, said, lengths, frames, mask_index=0)
            loss = tf.reduce_mean(each / tf.cast(tf.maximum(lengths, 1), each.dtype))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def speech() -> Made:
    """Returns a speech model for five frames."""
    inputs = keras.Input((5, 3))
    hidden = layers.Conv1D(4, 3, padding="same")(inputs)
    model = Speech(inputs, layers.Dense(4)(layers.ReLU()(hidden)))
    model.compile("adam")
    return model, (normal(ROWS, 5, 3), np.sort(_tags()[:, :2])[:, ::-1].copy())


class Experts(layers.Layer):
    """A switch with a balanced load over all tokens of the batch (Fedus et al., 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.router = layers.Dense(2)
        self.experts = [layers.Dense(4, activation="relu") for _ in range(2)]

    def call(self, x: Any) -> Any:
        """Sends each token to the expert that the router prefers, while that expert has room."""
        flat = ops.reshape(x, [-1, 4])
        chances = ops.softmax(self.router(flat))
        chosen = ops.one_hot(ops.argmax(chances, -1), 2, dtype=x.dtype)
        load = ops.mean(chosen, axis=0) * ops.mean(chances, axis=0)
        self.add_loss(0.1 * 2 * ops.sum(load))
        place = ops.cumsum(chosen, axis=0) * chosen
        chosen *= ops.cast(place <= 15, x.dtype)
        outputs = ops.stack([expert(flat) for expert in self.experts], axis=1)
        weights = (chosen * chances)[:, :, None]
        return ops.reshape(ops.sum(outputs * weights, axis=1), ops.shape(x))


def experts() -> Made:
    """Returns a model with experts behind embeddings."""
    return _text(_words(), Experts(), layers.GlobalMaxPooling1D())


class Language(Subclassed):
    """Predicts the next word, with tied weights and a penalty of the partition function."""

    def __init__(self, words: int = WORDS) -> None:
        super().__init__()
        self.size = words
        self.words, self.reader = layers.Embedding(words, 4), layers.GRU(4, return_sequences=True)

    def loss_of(self, x: Any, y: Any) -> Any:
        """Uses label smoothing and z-loss."""
        hidden = self.reader(self.words(x[:, :-1]))
        logits = ops.matmul(hidden, ops.transpose(self.words.embeddings))
        truth = 0.9 * tf.one_hot(x[:, 1:], self.size, dtype=logits.dtype) + 0.1 / self.size
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(truth, logits))
        return loss + 1e-2 * tf.reduce_mean(tf.reduce_logsumexp(logits, -1) ** 2)


def language(words: int = WORDS) -> Made:
    """Returns a language model; the gradients of its table are both dense and sparse."""
    model = Language(words)
    model.words.build((None, LENGTH))
    model.reader.build((None, LENGTH, 4))
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.1))
    model.optimizer.build(model.trainable_variables)
    return model, tokens()


class Sampled(Subclassed):
    """Skip-gram: looks up a table by words and by their negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.contexts = _words(), _words()

    def loss_of(self, x: Any, y: Any) -> Any:
        """Takes the first word as the target."""
        target, contexts = self.words(x[:, 0]), self.contexts(x)
        logits = tf.einsum("bd,bnd->bn", target, contexts)
        truth = tf.cast(tf.range(LENGTH) == 1, logits.dtype) * tf.ones_like(logits)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(truth, logits))


def sampled() -> Made:
    """Returns the model with Adam.

    Adam's sparse gradients are summed before their moments are squared.
    """
    model = Sampled()
    model.words.build(None)
    model.contexts.build(None)
    model.compile(keras.optimizers.Adam(0.01))
    model.optimizer.build(model.trainable_variables)
    return model, tokens()


MODELS: Makers = {
    "embeddings under Adam with clipnorm": embeddings,
    "a large table under Adam": large_table(),
    "a large table under Adam with clipnorm": large_table(clipnorm=0.01),
    "a large table, accumulation and EMA": large_table(gradient_accumulation_steps=2, use_ema=True),
    "a large table under SGD": large_table_under_sgd,
    "two large tables, one looked up twice": large_tables,
    "a large table with tied weights": lambda: language(MANY),
    "an LSTM and a GRU backwards, with masks": recurrent,
    "a GRU both ways": both_ways,
    "convolutions in time": convolutions_in_time,
    "attention": attention,
    "entities, by the number of their words": entities,
    "a mask that reaches the loss": masked_loss,
    "a chain of tags": crf,
    "translation with attention": translation,
    "speech with lengths": speech,
    "experts with a balanced load": experts,
    "a language model with tied weights": language,
    "words and their contexts": sampled,
}
