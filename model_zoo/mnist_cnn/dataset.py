"""MNIST (LeCun et al., 1998) through tensorflow-datasets."""

from __future__ import annotations

from typing import Any

from model_zoo import tfds_images


def dataset(split: str, data_dir: str) -> Any:
    """60,000 training and 10,000 validation examples."""
    tfds_split = "test" if split == "validation" else "train"
    return tfds_images.load("mnist", tfds_split, data_dir, image_size=28)
