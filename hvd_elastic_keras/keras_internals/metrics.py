"""Resets the metrics that plain Keras would reset before the first epoch."""

from __future__ import annotations

from typing import Any

import keras

_EARLY = "_elastic_built_early"
"""Attribute of the metrics given to `compile`: plain Keras would build them in the first step."""


def note_built_early(model: keras.Model, was_built: bool) -> None:
    """Notes whether the metrics given to `compile` have just been built, for `reset_at_start`."""
    compiled: Any = model._compile_metrics
    if compiled is not None:
        object.__setattr__(compiled, _EARLY, compiled.built and not was_built)


def reset_at_start(model: keras.Model) -> None:
    """Calls `reset_metrics` before the first epoch of a `fit`.

    Plain Keras does not reset metrics that it has not built by then. They are as they were made.
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
