"""A small decoder-only Transformer over bytes: Radford et al., GPT-2, 2019."""

from __future__ import annotations

import keras
import ml_collections

from model_zoo.transformer import TokenAndPosition, feed_forward

VOCABULARY_SIZE = 256


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from bytes to logits of the next byte.

    The input is int [n, config.length], the output [n, config.length, 256].
    """
    layers = keras.layers
    tokens = layers.Input((config.length,), dtype="int32")
    x = TokenAndPosition(VOCABULARY_SIZE, config.length, config.size)(tokens)
    x = layers.Dropout(config.dropout)(x)
    for _ in range(config.num_blocks):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(
            config.num_heads, config.size // config.num_heads, dropout=config.dropout
        )
        x = x + layers.Dropout(config.dropout)(attention(normal, normal, use_causal_mask=True))
        normal = layers.LayerNormalization()(x)
        x = x + feed_forward(normal, 4 * config.size, config.dropout)
    logits = layers.Dense(VOCABULARY_SIZE)(layers.LayerNormalization()(x))
    return keras.Model(tokens, logits, name="causal_lm")


def loss() -> keras.losses.Loss:
    """Returns the mean over all bytes, in nats. Divide it by log(2) for bits per byte."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns AdamW with clipped gradients.

    The learning rate rises, and then falls along a cosine to a tenth.
    """
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=config.decay_steps,
        alpha=0.1,
        warmup_target=config.learning_rate,
        warmup_steps=config.warmup_steps,
    )
    adam = keras.optimizers.AdamW(
        schedule, weight_decay=config.weight_decay, beta_2=0.99, global_clipnorm=1.0
    )
    adam.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "embeddings"])
    return adam


def metrics() -> list[str]:
    """Returns the metric: the share of bytes that the model finds most likely."""
    return ["accuracy"]
