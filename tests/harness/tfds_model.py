"""Like `fault_model.py`, with the digits loaded by tensorflow-datasets."""

from __future__ import annotations

from typing import Any

from model_zoo import tfds_images
from tests.harness.fault_model import model

__all__ = ["dataset", "model"]


def dataset(split: str, data_dir: str) -> Any:
    """Returns 7 steps of 64 and a smaller one."""
    part = "train[:480]" if split == "train" else "test[:100]"
    return tfds_images.load("bundled_digits", part, data_dir, image_size=8)
