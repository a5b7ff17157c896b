"""Whose code updates a metric, and which metrics plain Keras would reset."""

from __future__ import annotations

from typing import Any

import keras

KERAS = "keras.src."
_EARLY = "_elastic_built_early"
"""Attribute of the metrics given to `compile`: plain Keras would build them in the first step."""


def note_built_early(model: keras.Model, was_built: bool) -> None:
    """Notes whether the metrics given to `compile` have just been built, for `reset_at_start`."""
    compiled: Any = model._compile_metrics
    if compiled is not None:
        object.__setattr__(compiled, _EARLY, compiled.built and not was_built)


def reset_at_start(model: keras.Model) -> None:
    """Calls `reset_metrics` before the first epoch of a `fit`.

    Metrics that plain Keras has not built by then are not reset by it; they are as they were made.
    """
    compiled: Any = model._compile_metrics
    early = bool(getattr(compiled, _EARLY, False))
    if not early:
        model.reset_metrics()
        return
    compiled.built = False
    try:
        model.reset_metrics()
    finally:
        compiled.built = True
        object.__setattr__(compiled, _EARLY, False)


def is_of_keras(metric: keras.Metric) -> bool:
    """Whether the state of a metric is updated by Keras's own code, and not a user's function."""
    owner = next(c for c in type(metric).__mro__ if "update_state" in vars(c))
    function = getattr(metric, "_fn", None)
    of_keras = function is None or getattr(function, "__module__", "").startswith(KERAS)
    return owner.__module__.startswith(KERAS) and of_keras
