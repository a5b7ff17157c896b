"""Image classification data sets of tensorflow-datasets, as deterministic `tf.data` pipelines."""

from __future__ import annotations

import tensorflow as tf

from hvd_elastic_keras.errors import DataError


def load(name: str, split: str, data_dir: str, image_size: int) -> tf.data.Dataset:
    """Single examples: an image [image_size, image_size, channels] in [0, 1] and its label.

    The order is that of the files on disk, the same for everybody.

    Raises:
      DataError: the data set has not been prepared in `data_dir`, with the command that does it.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_dir or None)
    if not builder.is_prepared():
        where = f" --data_dir={data_dir}" if data_dir else ""
        raise DataError(
            f"The data set {name} is not prepared in {builder.data_dir}. Prepare it once with\n"
            f"    tfds build {name}{where}\n"
            f"{'and give the same --data_dir here' if data_dir else 'and start again'}. That needs "
            "a connection; some data sets (imagenet2012) also archives that you put into "
            "downloads/manual."
        )
    read_config = tfds.ReadConfig(shuffle_seed=0, interleave_cycle_length=1)
    dataset = builder.as_dataset(
        split=split, as_supervised=True, shuffle_files=False, read_config=read_config
    )

    def prepare(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.convert_image_dtype(image, tf.float32)
        if image.shape[:2] != (image_size, image_size):
            image = tf.image.resize(image, (image_size, image_size), antialias=True)
        return image, label

    return dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
