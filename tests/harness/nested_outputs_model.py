"""Like `inference_model.py`, with several nested outputs; one is the number of the example."""

from __future__ import annotations

import keras

from tests.harness.inference_model import FEATURES, dataset, scores

__all__ = ["dataset", "model"]


def model() -> keras.Model:
    """Returns a model of scores and a pair of arrays of other shapes."""
    inputs = keras.Input((FEATURES,))
    pair = (keras.layers.Reshape((2, 3))(inputs), inputs[:, 0])
    return keras.Model(inputs, {"scores": scores(inputs), "pair": pair})
