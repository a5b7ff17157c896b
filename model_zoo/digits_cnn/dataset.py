"""The bundled handwritten digits."""

from __future__ import annotations

from model_zoo import digits


def dataset(split: str) -> digits.Arrays:
    """Returns 1,437 training or 360 validation examples."""
    return digits.load(split)
