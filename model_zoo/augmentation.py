"""Augmentation as layers of a model: each epoch draws new values, the same ones on any worker."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)


def shifted(x: keras.KerasTensor, max_shift: int, mirror: bool) -> keras.KerasTensor:
    """In training, shifts images by up to `max_shift` pixels and mirrors half of them at random.

    A shifted image has a black border: this is a crop of an image with black padding, as in He et
    al., "Deep Residual Learning for Image Recognition", 2015, section 4.2. Without `mirror`, no
    image is mirrored.
    """
    height, width = x.shape[1:3]
    x = keras.layers.RandomTranslation(
        max_shift / height,
        max_shift / width,
        fill_mode="constant",
        fill_value=0.0,
        interpolation="nearest",  # whole pixels
    )(x)
    return keras.layers.RandomFlip("horizontal")(x) if mirror else x


@keras.saving.register_keras_serializable("model_zoo")
class RandomResizedCrop(keras.layers.Layer):  # type: ignore[misc]
    """Cuts a random part out of each image in training, else its middle. Resizes it to one size.

    A part has 8 to 100 % of the area and a ratio of width to height of 3/4 to 4/3: Szegedy et al.,
    "Going Deeper with Convolutions", 2015. A part that does not fit is cut at the border.

    Args:
      size: height and width of the results, in pixels.
      seed: seed of the draws; None derives it from Keras's global seed.
    """

    def __init__(self, size: int, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size
        self.seed = seed
        self._draws = keras.random.SeedGenerator(seed)

    def call(self, images: Any, training: bool = False) -> Any:
        """Maps images [n, height, width, channels] to [n, size, size, channels]."""
        if not training:
            return self._cut(images, *self._middle(images))
        count = keras.ops.shape(images)[0]
        area, aspect, row, column = (
            keras.random.uniform((count,), seed=self._draws) for _ in range(4)
        )
        area = AREA[0] + area * (AREA[1] - AREA[0])
        aspect = keras.ops.exp(
            keras.ops.log(ASPECT[0]) + aspect * keras.ops.log(ASPECT[1] / ASPECT[0])
        )
        height = keras.ops.minimum(keras.ops.sqrt(area / aspect), 1.0)
        width = keras.ops.minimum(keras.ops.sqrt(area * aspect), 1.0)
        top, left = row * (1 - height), column * (1 - width)
        return self._cut(images, top, left, height, width)

    def _middle(self, images: Any) -> list[Any]:
        """Returns top, left, height and width of the middle, at whole pixels.

        They are fractions of side - 1, because `crop_and_resize` counts up to side - 1.
        """
        ones = keras.ops.ones((keras.ops.shape(images)[0],))
        shares = [min(1.0, (self.size - 1) / (side - 1)) for side in images.shape[1:3]]
        return [ones * part for part in (*((1 - share) / 2 for share in shares), *shares)]

    def _cut(self, images: Any, top: Any, left: Any, height: Any, width: Any) -> Any:
        """Cuts and resizes. All arguments are fractions of an image, of shape [n]."""
        boxes = keras.ops.stack([top, left, top + height, left + width], axis=1)
        numbers = keras.ops.arange(keras.ops.shape(images)[0], dtype="int32")
        return tf.image.crop_and_resize(images, boxes, numbers, (self.size, self.size))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns [n, size, size, channels]."""
        return (input_shape[0], self.size, self.size, input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {**super().get_config(), "size": self.size, "seed": self.seed}
