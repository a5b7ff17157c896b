"""Reproducible results with Keras: all the seeds, one thread, deterministic ops."""

import os

os.environ["PYTHONHASHSEED"] = "0"
os.environ["TF_DETERMINISTIC_OPS"] = "1"
os.environ["TF_CUDNN_DETERMINISTIC"] = "1"
import random

random.seed(1254)
import numpy as np

np.random.seed(37)
import tensorflow as tf

tf.random.set_seed(89)
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.experimental.enable_op_determinism()

from tensorflow.keras import Model, layers

x = np.random.rand(600, 8, 8, 3).astype("float32")
y = (x[:, 2:6, 2:6, 0].mean((1, 2)) - x[:, :, :, 1].mean((1, 2)) + np.random.normal(0, 0.03, 600)) * 10
order = list(range(600))
random.shuffle(order)
x, y = x[order], y[order]

ds = (
    tf.data.Dataset.from_tensor_slices((x[:500], y[:500]))
    .shuffle(500, seed=3)
    .map(lambda a, b: (tf.image.random_flip_left_right(a, seed=4), b), num_parallel_calls=4)
    .map(lambda a, b: (a + tf.random.normal(tf.shape(a), stddev=0.02, seed=5), b), num_parallel_calls=4)
    .batch(25)
    .prefetch(2)
)

inputs = layers.Input((8, 8, 3))
h = layers.GaussianNoise(0.05, seed=11)(inputs)
h = layers.Conv2D(8, 3, activation="relu", kernel_initializer=tf.keras.initializers.HeNormal(seed=12))(h)
h = layers.Flatten()(h)
h = layers.Dropout(0.2, seed=13)(h)
outputs = layers.Dense(1, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=14))(h)
model = Model(inputs, outputs)
model.compile(optimizer=tf.keras.optimizers.Adam(3e-3), loss="mse", metrics=["mae"])

history = model.fit(ds, epochs=4, validation_data=(x[500:], y[500:]), verbose=0)
print("loss", history.history["loss"])
print("val_mae", history.history["val_mae"])
print("sum of weights %.10f" % sum(float(np.sum(w)) for w in model.get_weights()))
print("prediction", model.predict(x[500:503], verbose=0).ravel())
