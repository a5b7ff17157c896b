"""The bundled digits, or MNIST (LeCun et al., 1998) from tensorflow-datasets."""

from __future__ import annotations

from typing import Any

import ml_collections

from model_zoo import images


def dataset(split: str, config: ml_collections.ConfigDict, data_dir: str) -> Any:
    """Returns images of `config.image_shape`, one channel, in [0, 1] and class numbers."""
    return images.load(split, config, data_dir)
