"""The bundled handwritten digits."""

from __future__ import annotations

from model_zoo import digits


def dataset(split: str) -> digits.Arrays:
    """1,437 training and 360 validation examples."""
    return digits.load(split)
