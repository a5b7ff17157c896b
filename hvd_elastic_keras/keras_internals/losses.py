"""Functions with which Keras reduces losses; see `keras_internals.replaced`."""

from __future__ import annotations

from keras.src.losses import loss

__all__ = ["loss"]
