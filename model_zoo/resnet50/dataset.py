"""The bundled digits; CIFAR-10 and ImageNet through tensorflow-datasets."""

from __future__ import annotations

from typing import Any

import ml_collections

from model_zoo import images


def dataset(split: str, config: ml_collections.ConfigDict, data_dir: str) -> Any:
    """Images of `config.image_shape` in [0, 1] and class numbers."""
    return images.load(split, config, data_dir)
