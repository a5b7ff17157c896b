"""CutMix on batches, with a tf.function that draws the boxes."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

np.random.seed(42)
tf.random.set_seed(42)

BATCH = 32
IMG = 16
d = np.load("digits.npz")
train_x = tf.cast(d["x_train"][..., np.newaxis], tf.float32) / 255.0
train_y = keras.utils.to_categorical(d["y_train"], 10).astype("float32")
test_x = tf.cast(d["x_test"][..., np.newaxis], tf.float32) / 255.0
test_y = keras.utils.to_categorical(d["y_test"], 10).astype("float32")


@tf.function
def get_box(lambda_value):
    cut_rat = tf.math.sqrt(1.0 - lambda_value)
    cut = tf.cast(IMG * cut_rat, tf.int32)
    cut_x = tf.random.uniform((1,), minval=0, maxval=IMG, dtype=tf.int32)[0]
    cut_y = tf.random.uniform((1,), minval=0, maxval=IMG, dtype=tf.int32)[0]
    x1 = tf.clip_by_value(cut_x - cut // 2, 0, IMG)
    y1 = tf.clip_by_value(cut_y - cut // 2, 0, IMG)
    x2 = tf.clip_by_value(cut_x + cut // 2, 0, IMG)
    y2 = tf.clip_by_value(cut_y + cut // 2, 0, IMG)
    return y1, x1, y2, x2


def cutmix(images, labels):
    index = tf.random.shuffle(tf.range(tf.shape(images)[0]))
    lam = tf.random.uniform(())
    y1, x1, y2, x2 = get_box(lam)
    rows = tf.range(IMG)
    inside = ((rows >= y1) & (rows < y2))[:, None] & ((rows >= x1) & (rows < x2))[None, :]
    inside = tf.cast(inside, tf.float32)[None, ..., None]
    mixed = images * (1 - inside) + tf.gather(images, index) * inside
    lam = 1.0 - tf.reduce_mean(inside)
    return mixed, labels * lam + tf.gather(labels, index) * (1 - lam)


def maybe_cutmix(images, labels):
    return tf.cond(
        tf.random.uniform(()) < 0.5, lambda: cutmix(images, labels), lambda: (images, labels)
    )


ds = tf.data.Dataset.from_tensor_slices((train_x, train_y))
ds = ds.shuffle(1024).batch(BATCH).map(maybe_cutmix, num_parallel_calls=tf.data.AUTOTUNE)
ds = ds.prefetch(tf.data.AUTOTUNE)

model = keras.Sequential(
    [
        keras.layers.Input((IMG, IMG, 1)),
        keras.layers.Conv2D(24, 3, activation="relu"),
        keras.layers.Conv2D(24, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.AdamW(3e-3, weight_decay=1e-4),
    loss=keras.losses.CategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(ds, epochs=4, validation_data=(test_x, test_y), verbose=2)
loss, acc = model.evaluate(test_x, test_y, batch_size=64, verbose=0)
print("test loss, test acc:", loss, acc)
pred = model.predict(test_x, verbose=0).argmax(1)
print(tf.math.confusion_matrix(d["y_test"], pred).numpy())
