"""A Transformer encoder that classifies: Vaswani et al., "Attention Is All You Need", 2017."""

from __future__ import annotations

import keras
import ml_collections

from model_zoo.transformer import TokenAndPosition, feed_forward


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from numbers of words to logits [n, classes].

    The input is int [n, config.num_words], with 0 for padding. Padding is masked in attention and
    left out of the mean over the words.
    """
    layers = keras.layers
    words = layers.Input((config.num_words,), dtype="int64")
    x = TokenAndPosition(config.vocabulary_size, config.num_words, config.size, mask_zero=True)(
        words
    )
    for _ in range(config.num_blocks):
        attention = layers.MultiHeadAttention(
            config.num_heads, config.size // config.num_heads, dropout=config.dropout
        )
        x = layers.LayerNormalization()(x + layers.Dropout(config.dropout)(attention(x, x)))
        x = layers.LayerNormalization()(x + feed_forward(x, config.feed_forward, config.dropout))
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(config.dropout)(x)
    return keras.Model(words, layers.Dense(config.num_classes)(x), name="text_transformer")


def loss() -> keras.losses.Loss:
    """Returns a loss for labels that are class numbers and a model that gives logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns Adam."""
    return keras.optimizers.Adam(config.learning_rate)


def metrics() -> list[str]:
    """Returns the metric: the share of right answers."""
    return ["accuracy"]
