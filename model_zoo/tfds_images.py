"""Image classification data sets of tensorflow-datasets."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import tensorflow as tf

from hvd_elastic_keras import TfdsSource

OURS = {"bundled_digits": "model_zoo.digits_tfds"}
"""Modules that define data sets of this package, by the name of the data set."""
Preprocess = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def load(name: str, split: str, data_dir: str, image_size: int) -> tuple[TfdsSource, Preprocess]:
    """Returns the records of a data set, and a function that turns a record into an example.

    An example is an image [image_size, image_size, channels] in [0, 1], from the middle of the
    image in the files, and its label.

    Raises:
      DataError: the data set has not been prepared in `data_dir`. The error names the command that
        prepares it.
    """
    if name in OURS:
        importlib.import_module(OURS[name])  # registers it in tensorflow-datasets
    source = TfdsSource(name, split, data_dir)

    def prepare(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image, label = source.decode_supervised(record)
        if image.shape[:2] != (image_size, image_size):
            # The middle square is used, which keeps the ratio of width to height.
            side = tf.minimum(tf.shape(image)[0], tf.shape(image)[1])
            image = tf.image.resize_with_crop_or_pad(image, side, side)
        image = tf.image.convert_image_dtype(image, tf.float32)
        if image.shape[:2] != (image_size, image_size):
            image = tf.image.resize(image, (image_size, image_size), antialias=True)
        return image, label

    return source, prepare
