"""Augmentation written in numpy, called from tf.data by numpy_function and py_function."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, models

np.random.seed(0)

x = np.load("digits.npz")["x_train"].astype(np.float32)[..., None] / 255
y = np.load("digits.npz")["y_train"].astype(np.int64)


def random_shift_and_noise(img):
    dx, dy = np.random.randint(-2, 3, size=2)
    img = np.roll(img, (dy, dx), axis=(0, 1))
    if np.random.rand() < 0.5:
        img = img + np.random.normal(0, 0.1, img.shape).astype(np.float32)
    return img


def cutout(img):
    top, left = np.random.randint(0, 12, 2)
    arr = img.numpy().copy()
    arr[top : top + 4, left : left + 4] = 0
    return arr


def tf_augment(img, label):
    im_shape = img.shape
    [img] = tf.numpy_function(random_shift_and_noise, [img], [tf.float32])
    img.set_shape(im_shape)
    img = tf.py_function(cutout, [img], tf.float32)
    img.set_shape(im_shape)
    return img, label


n = len(x)
train_ds = tf.data.Dataset.from_tensor_slices((x[: n - 160], y[: n - 160]))
train_ds = train_ds.shuffle(n).map(tf_augment).batch(32)
val_ds = tf.data.Dataset.from_tensor_slices((x[n - 160 :], y[n - 160 :])).batch(32)

model = models.Sequential()
model.add(layers.Conv2D(16, (3, 3), activation="relu", input_shape=(16, 16, 1)))
model.add(layers.MaxPooling2D((2, 2)))
model.add(layers.Conv2D(32, (3, 3), activation="relu"))
model.add(layers.Flatten())
model.add(layers.Dense(32, activation="relu"))
model.add(layers.Dense(10))
model.compile(
    optimizer="adam",
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(train_ds, epochs=3, validation_data=val_ds)
print(history.history["loss"])
print(history.history["val_loss"], history.history["val_accuracy"])
