"""Images and masks: Oxford-IIIT Pet from tensorflow-datasets, or scenes of bundled digits."""

from __future__ import annotations

from typing import Any

import ml_collections
import tensorflow as tf

from hvd_elastic_keras import TfdsSource
from model_zoo.unet import digit_scenes


def dataset(split: str, config: ml_collections.ConfigDict, data_dir: str) -> Any:
    """Returns images [size, size, channels] in [0, 1], and the class of each pixel [size, size]."""
    if config.dataset == "digit_scenes":
        count = config.num_train if split == "train" else config.num_validation
        return digit_scenes.make(split, count)
    source = TfdsSource(
        config.dataset,
        config.validation_split if split == "validation" else config.train_split,
        data_dir,
    )
    size = tuple(config.image_shape[:2])

    def prepare(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = source.decode(record)
        image = tf.image.convert_image_dtype(features["image"], tf.float32)
        image = tf.image.resize(image, size, antialias=True)
        mask = tf.image.resize(features["segmentation_mask"], size, method="nearest")
        # In the files, classes count from 1: pet, background, border.
        return image, tf.cast(mask[..., 0], tf.int32) - 1

    return source, prepare
