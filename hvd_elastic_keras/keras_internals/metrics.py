"""Whose code updates a metric."""

from __future__ import annotations

import keras

KERAS = "keras.src."


def is_of_keras(metric: keras.Metric) -> bool:
    """Whether the state of a metric is updated by Keras's own code, and not a user's function."""
    owner = next(c for c in type(metric).__mro__ if "update_state" in vars(c))
    function = getattr(metric, "_fn", None)
    of_keras = function is None or getattr(function, "__module__", "").startswith(KERAS)
    return owner.__module__.startswith(KERAS) and of_keras
