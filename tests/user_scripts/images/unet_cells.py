"""Segmentation of cells with a small U-Net; a PyDataset reads the image and mask files."""

import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

input_dir = "cells/images/"
target_dir = "cells/masks/"
img_size = (32, 32)
num_classes = 3
batch_size = 8

input_img_paths = sorted(
    os.path.join(input_dir, fname) for fname in os.listdir(input_dir) if fname.endswith(".png")
)
target_img_paths = sorted(
    os.path.join(target_dir, fname)
    for fname in os.listdir(target_dir)
    if fname.endswith(".png") and not fname.startswith(".")
)
print("Number of samples:", len(input_img_paths))


class CellData(keras.utils.PyDataset):
    """Helper to iterate over the data (as Numpy arrays)."""

    def __init__(self, batch_size, img_size, input_img_paths, target_img_paths, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.img_size = img_size
        self.input_img_paths = input_img_paths
        self.target_img_paths = target_img_paths

    def __len__(self):
        return len(self.target_img_paths) // self.batch_size

    def __getitem__(self, idx):
        """Returns tuple (input, target) correspond to batch #idx."""
        i = idx * self.batch_size
        x = np.zeros((self.batch_size, *self.img_size, 1), dtype="float32")
        for j, path in enumerate(self.input_img_paths[i : i + self.batch_size]):
            x[j] = tf.io.decode_png(tf.io.read_file(path), channels=1).numpy() / 255.0
        y = np.zeros((self.batch_size, *self.img_size, 1), dtype="uint8")
        for j, path in enumerate(self.target_img_paths[i : i + self.batch_size]):
            y[j] = tf.io.decode_png(tf.io.read_file(path), channels=1).numpy()
        return x, y


def conv_block(x, filters):
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
    return x


def get_model():
    inputs = keras.Input(img_size + (1,))
    d1 = conv_block(inputs, 8)
    d2 = conv_block(layers.MaxPooling2D()(d1), 16)
    mid = conv_block(layers.MaxPooling2D()(d2), 24)
    u2 = layers.concatenate([layers.Conv2DTranspose(16, 2, strides=2)(mid), d2])
    u2 = conv_block(u2, 16)
    u1 = layers.concatenate([layers.UpSampling2D(2)(u2), d1])
    u1 = conv_block(u1, 8)
    return keras.Model(inputs, layers.Conv2D(num_classes, 1, activation="softmax")(u1))


val_samples = 16
train_gen = CellData(batch_size, img_size, input_img_paths[:-val_samples], target_img_paths[:-val_samples])
val_gen = CellData(batch_size, img_size, input_img_paths[-val_samples:], target_img_paths[-val_samples:])

model = get_model()
model.compile(
    optimizer=keras.optimizers.Adam(5e-3),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy", keras.metrics.MeanIoU(num_classes, sparse_y_pred=False, name="miou")],
)
callbacks = [keras.callbacks.ModelCheckpoint("cells_segmentation.keras", save_best_only=True)]
history = model.fit(train_gen, epochs=4, validation_data=val_gen, callbacks=callbacks, verbose=2)
print({k: v[-1] for k, v in history.history.items()})

val_preds = model.predict(val_gen)
mask = np.argmax(val_preds, axis=-1)
print("pixels per class:", np.bincount(mask.ravel(), minlength=num_classes))
