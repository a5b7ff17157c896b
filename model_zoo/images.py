"""Loads the images that a configuration names: the bundled digits, or from tensorflow-datasets."""

from __future__ import annotations

from typing import Any

import ml_collections

from model_zoo import digits, tfds_images


def load(split: str, config: ml_collections.ConfigDict, data_dir: str) -> Any:
    """Returns images of `config.image_shape` in [0, 1] and class numbers.

    Raises:
      DataError: the data set `config.dataset` has not been prepared in `data_dir`.
    """
    if config.dataset == "digits":
        return digits.load(split)
    return tfds_images.load(
        config.dataset,
        config.validation_split if split == "validation" else config.train_split,
        data_dir,
        image_size=config.image_shape[0],
    )
