"""DeepFM: Guo et al., "DeepFM: A Factorization-Machine based Neural Network", 2017."""

from __future__ import annotations

import keras
import ml_collections

from model_zoo.deepfm.criteo import NUM_FIELDS


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from numbers of values to the logit of a click.

    The input is int [n, 39] below `config.buckets`, the output [n, 1]. A factorization machine and
    a deep network share one table of embeddings.
    """
    layers = keras.layers
    values = layers.Input((NUM_FIELDS,), dtype="int64")
    weights = layers.Embedding(config.buckets, 1, name="weights")(values)
    initial = keras.initializers.RandomNormal(stddev=config.initial_deviation)
    vectors = layers.Embedding(
        config.buckets, config.embedding_size, embeddings_initializer=initial, name="vectors"
    )(values)
    x = layers.Flatten()(vectors)
    for units in config.hidden_units:
        x = layers.Dropout(config.dropout)(layers.Dense(units, activation="relu")(x))
    logits = [
        keras.ops.sum(weights, axis=1),
        _products(vectors),
        layers.Dense(1, name="deep")(x),
    ]
    return keras.Model(values, layers.Add()(logits), name="deepfm")


def _products(vectors: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the sum of the inner products of all pairs, from [n, fields, size] to [n, 1].

    It is half of (square of sum - sum of squares): Rendle, "Factorization Machines", 2010.
    """
    ops = keras.ops
    square_of_sum = ops.square(ops.sum(vectors, axis=1))
    sum_of_squares = ops.sum(ops.square(vectors), axis=1)
    return 0.5 * ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True)


def loss() -> keras.losses.Loss:
    """Returns a loss for labels 0 and 1 and a model that gives a logit."""
    return keras.losses.BinaryCrossentropy(from_logits=True)


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns Adam, as in the paper."""
    return keras.optimizers.Adam(config.learning_rate)


def metrics() -> list[keras.metrics.Metric]:
    """Returns the area under the ROC curve, the usual measure of predicted clicks."""
    return [keras.metrics.AUC(name="auc", from_logits=True)]
