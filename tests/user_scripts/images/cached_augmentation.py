"""Digits with augmentation in the pipeline, cached on disk, and a random layer of my own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops


class RandomInvert(layers.Layer):
    """Inverts each image with probability `factor` while training."""

    def __init__(self, factor=0.3, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, x, training=False):
        if not training:
            return x
        u = keras.random.uniform((ops.shape(x)[0], 1, 1, 1), seed=self.seed_generator)
        return ops.where(u < self.factor, 1.0 - x, x)

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


def augment(image, label):
    image = tf.cast(image, tf.float32)[..., tf.newaxis] / 255.0
    image = tf.image.random_brightness(image, max_delta=0.2)
    image += tf.random.normal([16, 16, 1], stddev=0.1)
    return tf.clip_by_value(image, 0.0, 1.0), label


def to_float(image, label):
    return tf.cast(image, tf.float32)[..., tf.newaxis] / 255.0, label


npz = np.load("digits.npz")
train = tf.data.Dataset.from_tensor_slices((npz["x_train"], npz["y_train"]))
# the heavy work only once
train = train.map(augment, num_parallel_calls=4).cache("train_cache")
train = train.shuffle(256).batch(32).prefetch(tf.data.AUTOTUNE)
test = tf.data.Dataset.from_tensor_slices((npz["x_test"], npz["y_test"])).batch(64)
test = test.unbatch().map(to_float).batch(50).cache()

model = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        RandomInvert(0.2),
        layers.RandomTranslation(0.05, 0.05, fill_mode="nearest"),
        layers.Conv2D(16, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.SpatialDropout2D(0.1),
        layers.Conv2D(24, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(3e-3, clipnorm=1.0),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=3, name="top3")],
)
history = model.fit(train, epochs=4, validation_data=test)
print({k: [float("%.9g" % v) for v in values] for k, values in history.history.items()})
model.save("digits_random_invert.keras")
again = keras.models.load_model("digits_random_invert.keras", custom_objects={"RandomInvert": RandomInvert})
print("Test:", again.evaluate(test, verbose=0))
