"""The learning rate that a model trains with at the moment."""

from __future__ import annotations

import math

import keras


def learning_rate_of(model: keras.Model) -> float | None:
    """What `model.optimizer.learning_rate` says; None where there is no one such number.

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> learning_rate_of(model)
    >>> model.compile(optimizer=keras.optimizers.SGD(0.25))
    >>> learning_rate_of(model)
    0.25
    """
    try:
        rate = float(model.optimizer.learning_rate)
    except (AttributeError, TypeError, ValueError):
        return None  # not compiled, or an optimizer of the user's own that has another idea of it
    return rate if math.isfinite(rate) else None
