"""Sequences: masks, recurrent layers and attention."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.harness.keras_models.case import (
    LABELS,
    SERIES,
    SIZE,
    TARGETS,
    TOKENS,
    Case,
    arrays,
    classifier,
    compiled,
    regressor,
    sgd,
    validated,
)

layers, ops = keras.layers, keras.ops
NEXT = np.roll(TOKENS, -1, 1)
PADDED_SERIES = np.where(TOKENS[:, :, None] > 0, SERIES, 0.0).astype("float32")
SERIES_TARGETS = np.tanh(np.cumsum(SERIES[:, :, :2], 1)).astype("float32")


def embedded(*inner: Any, **arguments: Any) -> keras.Model:
    """Returns a model of token numbers with a mask, then some layers."""
    return classifier(layers.Embedding(12, 4, mask_zero=True), *inner, shape=(6,), **arguments)


def language_model(**arguments: Any) -> keras.Model:
    """Returns a model of the next token at each place; padded places have no loss."""
    stack = [
        keras.Input((6,)),
        layers.Embedding(12, 4, mask_zero=True),
        layers.LSTM(5, return_sequences=True),
        layers.Dense(12),
    ]
    return compiled(keras.Sequential(stack), **arguments)


def unmasked_language_model() -> keras.Model:
    """Returns the same without a mask."""
    stack = [
        keras.Input((6,)),
        layers.Embedding(12, 4),
        layers.GRU(5, return_sequences=True),
        layers.TimeDistributed(layers.Dense(12)),
    ]
    return compiled(keras.Sequential(stack))


class Encoder(keras.Model):
    """Reads sentences; it makes its own mask from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = layers.Embedding(12, 4)
        self.pool = layers.GlobalAveragePooling1D()
        self.head = layers.Dense(3)

    def call(self, tokens: Any) -> Any:
        """Returns a score from the mean over the words that are not padding."""
        mask = ops.not_equal(tokens, 0)
        return self.head(self.pool(self.embedding(tokens), mask=mask))


class PositionEmbedding(layers.Layer):
    """Embeds tokens and their places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = layers.Embedding(12, 4), layers.Embedding(6, 4)

    def call(self, x: Any) -> Any:
        """Returns the sum of both embeddings."""
        return self.tokens(x) + self.places(ops.arange(ops.shape(x)[-1]))


class TransformerBlock(layers.Layer):
    """Attention and two dense layers, each with a residual, a norm and dropout."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=2, key_dim=3, dropout=rate)
        self.dense = keras.Sequential([layers.Dense(6, "gelu"), layers.Dense(4)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.drops = [layers.Dropout(rate) for _ in range(2)]

    def call(self, x: Any, training: bool = False) -> Any:
        """Returns a tensor of the input's shape."""
        attended = self.drops[0](self.attention(x, x), training=training)
        x = self.norms[0](x + attended)
        return self.norms[1](x + self.drops[1](self.dense(x), training=training))


def transformer(rate: float = 0.0) -> keras.Model:
    """Returns the text classifier of Keras's examples."""
    return classifier(
        PositionEmbedding(), TransformerBlock(rate), layers.GlobalAveragePooling1D(), shape=(6,)
    )


def causal_transformer() -> keras.Model:
    """Returns a small GPT: grouped heads attend to earlier places only."""
    tokens = keras.Input((6,))
    x = PositionEmbedding()(tokens)
    x = x + layers.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True)
    x = layers.RMSNormalization()(x)
    return compiled(keras.Model(tokens, layers.Dense(12)(x)))


def translator() -> keras.Model:
    """Returns a model of two inputs, with masks; one attends to the other."""
    source, target = keras.Input((6,), name="source"), keras.Input((6,), name="target")
    embedding = layers.Embedding(12, 4, mask_zero=True)
    encoded, state = layers.GRU(4, return_sequences=True, return_state=True)(embedding(source))
    decoded = layers.GRU(4, return_sequences=True)(embedding(target), initial_state=state)
    joined = layers.Concatenate()([decoded, layers.AdditiveAttention()([decoded, encoded])])
    return compiled(keras.Model([source, target], layers.Dense(12)(joined)))


class MinimalCell(layers.Layer):
    """A custom recurrent cell."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = self.state_size = self.output_size = units

    def build(self, input_shape: Any) -> None:
        """Makes two matrices."""
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units))
        self.recurrent = self.add_weight(shape=(self.units, self.units))

    def call(self, x: Any, states: Any) -> Any:
        """Returns the next state."""
        out = ops.tanh(x @ self.kernel + states[0] @ self.recurrent)
        return out, [out]


def stateful() -> keras.Model:
    """Returns a model that keeps the state of each place in the batch, whose size is fixed."""
    model = keras.Sequential(
        [keras.Input(batch_shape=(11, 6, 3)), layers.LSTM(4, stateful=True), layers.Dense(3)]
    )
    return compiled(model)


def frames() -> keras.Model:
    """Returns a model of pictures in sequence."""
    return regressor(
        layers.Reshape((3, 3, 2, 1)),
        layers.ConvLSTM2D(2, 2, padding="same", return_sequences=False),
        layers.Flatten(),
        shape=(6, 3),
    )


def both_ways() -> keras.Model:
    """Returns a model that reads in both directions, without a loop in the graph."""
    return embedded(layers.Bidirectional(layers.GRU(2, unroll=True), merge_mode="sum"))


def weighted_places() -> keras.Model:
    """Returns a model whose sequences have a weight for each place."""
    model = keras.Sequential(
        [keras.Input((6, 3)), layers.SimpleRNN(4, return_sequences=True), layers.Dense(2)]
    )
    model.compile(sgd(), "mse", metrics=["mae"], weighted_metrics=["mse"])
    return model


PLACE_WEIGHTS = (TOKENS > 0).astype("float32") + 0.25
ON_TOKENS = arrays(TOKENS)

CASES = {
    # A table of fewer rows than a batch looks up: Keras then divides another way.
    "a small table with divided gradients": Case(
        lambda: embedded(
            layers.GlobalAveragePooling1D(), optimizer=keras.optimizers.RMSprop(0.01, epsilon=1e-2)
        ),
        ON_TOKENS,
    ),
    "a masked sequence read by an LSTM": Case(lambda: embedded(layers.LSTM(4)), ON_TOKENS),
    "masks in both directions": Case(both_ways, ON_TOKENS),
    "a Masking layer": Case(
        lambda: classifier(layers.Masking(), layers.GRU(4), shape=(6, 3)),
        validated(PADDED_SERIES),
    ),
    "a masked mean of one's own": Case(lambda: compiled(Encoder()), ON_TOKENS),
    "masked places of a sequence have no loss": Case(language_model, validated(TOKENS, NEXT)),
    "a sequence without a mask": Case(unmasked_language_model, arrays(TOKENS, NEXT)),
    "weights of places": Case(
        weighted_places, arrays(SERIES, SERIES_TARGETS, sample_weight=PLACE_WEIGHTS)
    ),
    "two masked sequences and attention between them": Case(
        translator,
        arrays([TOKENS, np.roll(TOKENS, 1, 0)], NEXT),
    ),
    "a transformer with dropout": Case(lambda: transformer(0.2), ON_TOKENS),
    "a causal transformer": Case(causal_transformer, arrays(TOKENS, NEXT)),
    "a cell of one's own": Case(
        lambda: regressor(layers.RNN([MinimalCell(4), layers.GRUCell(3)]), shape=(6, 3)),
        arrays(SERIES, TARGETS),
    ),
    "pictures one after the other": Case(frames, arrays(SERIES, TARGETS)),
    "a stateful layer": Case(
        stateful,
        lambda: {"x": SERIES, "y": LABELS, "batch_size": SIZE // 4, "shuffle": False},
    ),
}
