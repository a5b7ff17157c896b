"""Wide & Deep: Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016."""

from __future__ import annotations

import keras
import ml_collections

from model_zoo.wide_deep.census import NUMBERS, VOCABULARIES

# Means and variances of adult.data; for gain and loss, of log(1 + x).
MEANS = {
    "age": 38.6,
    "education_num": 10.1,
    "capital_gain": 0.73,
    "capital_loss": 0.35,
    "hours_per_week": 40.4,
}
VARIANCES = {
    "age": 186.0,
    "education_num": 6.6,
    "capital_gain": 6.0,
    "capital_loss": 2.5,
    "hours_per_week": 152.0,
}
ON_LOG_SCALE = ("capital_gain", "capital_loss")
AGES = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
CROSSED = (("education", "occupation"), ("age", "occupation"))
"""Keras only crosses pairs. "age" stands for the age in classes."""


def model(config: ml_collections.ConfigDict) -> keras.Model:
    """Returns a model from rows of the table to the logit [n, 1] of a high income.

    The input is a dict of columns, each of shape [n, 1]. Vocabularies and classes are fixed.
    Therefore nothing has to be adapted to the data first, and the saved model takes rows as they
    are.
    """
    layers = keras.layers
    numbers = {name: layers.Input((1,), name=name) for name in NUMBERS}
    texts = {name: layers.Input((1,), name=name, dtype="string") for name in VOCABULARIES}
    wide = layers.Dense(1, name="wide")(_wide_features(numbers, texts, config))
    x = _deep_features(numbers, texts, config)
    for units in config.hidden_units:
        x = layers.Dropout(config.dropout)(layers.Dense(units, activation="relu")(x))
    deep = layers.Dense(1, use_bias=False, name="deep")(x)
    outputs = layers.Add()([wide, deep])
    return keras.Model({**numbers, **texts}, outputs, name="wide_deep")


Columns = dict[str, keras.KerasTensor]


def _wide_features(
    numbers: Columns, texts: Columns, config: ml_collections.ConfigDict
) -> keras.KerasTensor:
    """Returns indicators of texts and of their crosses, which the model learns by heart."""
    layers = keras.layers
    indicators = [
        layers.StringLookup(vocabulary=words, output_mode="one_hot")(texts[name])
        for name, words in VOCABULARIES.items()
    ]
    classes = {"age": layers.Discretization(AGES)(numbers["age"])}
    for names in CROSSED:
        cross = layers.HashedCrossing(config.cross_bins, output_mode="one_hot")
        indicators.append(cross([{**texts, **classes}[name] for name in names]))
    return layers.Concatenate()(indicators)


def _deep_features(
    numbers: Columns, texts: Columns, config: ml_collections.ConfigDict
) -> keras.KerasTensor:
    """Returns scaled numbers and embeddings of texts, which generalise."""
    layers = keras.layers
    features = []
    for name, column in numbers.items():
        x = keras.ops.log1p(column) if name in ON_LOG_SCALE else column
        scaled = layers.Normalization(mean=MEANS[name], variance=VARIANCES[name], axis=None)
        features.append(scaled(x))
    for name, words in VOCABULARIES.items():
        place = layers.StringLookup(vocabulary=words)(texts[name])
        # One more row is for texts that are not in the vocabulary ("?" in the files).
        embedding = layers.Embedding(len(words) + 1, config.embedding_size)(place)
        features.append(layers.Flatten()(embedding))
    return layers.Concatenate()(features)


def loss() -> keras.losses.Loss:
    """Returns a loss for labels 0 and 1 and a model that gives a logit."""
    return keras.losses.BinaryCrossentropy(from_logits=True)


def optimizer(config: ml_collections.ConfigDict) -> keras.optimizers.Optimizer:
    """Returns Adam for both parts. The paper uses FTRL for the wide and AdaGrad for the deep."""
    return keras.optimizers.Adam(config.learning_rate)


def metrics() -> list[keras.metrics.Metric]:
    """Returns the share of right answers, and the area under the ROC curve."""
    return [
        keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0),
        keras.metrics.AUC(name="auc", from_logits=True),
    ]
