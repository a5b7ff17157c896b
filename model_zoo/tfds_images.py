"""Image classification data sets of tensorflow-datasets."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import tensorflow as tf

from hvd_elastic_keras import TfdsSource

OURS = {"bundled_digits": "model_zoo.digits_tfds"}
"""Data sets that are defined here, and where."""
Preprocess = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def load(name: str, split: str, data_dir: str, image_size: int) -> tuple[TfdsSource, Preprocess]:
    """The records of a data set, and what makes examples of them.

    An example is an image [image_size, image_size, channels] in [0, 1], the middle of that in the
    files, and its label.

    Raises:
      DataError: the data set has not been prepared in `data_dir`, with the command that does it.
    """
    if name in OURS:
        importlib.import_module(OURS[name])  # tensorflow-datasets knows it then
    source = TfdsSource(name, split, data_dir)

    def prepare(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = source.decode_supervised(record)
        if image.shape[:2] != (image_size, image_size):
            # The middle square: ratios of width to height stay.
            side = tf.minimum(tf.shape(image)[0], tf.shape(image)[1])
            image = tf.image.resize_with_crop_or_pad(image, side, side)
        image = tf.image.convert_image_dtype(image, tf.float32)
        if image.shape[:2] != (image_size, image_size):
            image = tf.image.resize(image, (image_size, image_size), antialias=True)
        return image, label

    return source, prepare
