"""The learning rate that a model trains with at the moment."""

from __future__ import annotations

import math

import keras


def learning_rate_of(model: keras.Model) -> float | None:
    """Returns `model.optimizer.learning_rate` as a number; None if there is no single number.

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> learning_rate_of(model)
    >>> model.compile(optimizer=keras.optimizers.SGD(0.25))
    >>> learning_rate_of(model)
    0.25
    """
    try:
        rate = float(model.optimizer.learning_rate)
    except (AttributeError, TypeError, ValueError):
        return None  # not compiled, or a user's own optimizer with another kind of learning rate
    return rate if math.isfinite(rate) else None
