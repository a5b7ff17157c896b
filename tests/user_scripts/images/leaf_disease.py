# leaf disease starter kernel: csv of labels + folder of jpgs, class weights, TTA
import csv
import math
import random

import numpy as np
import tensorflow as tf


class CFG:
    seed = 2021
    size = 28
    batch = 16
    epochs = 3
    lr = 4e-3
    path = "leaves"


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    tf.random.set_seed(seed)


seed_everything(CFG.seed)

rows = list(csv.DictReader(open(f"{CFG.path}/train.csv")))
labels = sorted({r["label"] for r in rows})
label2id = {l: i for i, l in enumerate(labels)}
random.shuffle(rows)
paths = np.array([f"{CFG.path}/images/{r['image_id']}.jpg" for r in rows])
y = np.array([label2id[r["label"]] for r in rows])
split = int(len(rows) * 0.8)

counts = np.bincount(y[:split], minlength=len(labels))
class_weight = {i: len(y[:split]) / (len(labels) * c) for i, c in enumerate(counts)}
print(labels, counts, class_weight)


def decode(path, label=None):
    img = tf.image.decode_jpeg(tf.io.read_file(path), channels=3)
    img = tf.image.resize(tf.cast(img, tf.float32) / 255.0, (CFG.size, CFG.size))
    return img if label is None else (img, label)


def augment(img, label=None):
    img = tf.image.random_flip_left_right(img)
    img = tf.image.random_flip_up_down(img)
    k = tf.random.uniform([], 0, 4, dtype=tf.int32)
    img = tf.image.rot90(img, k)
    img = tf.image.random_saturation(img, 0.8, 1.2)
    return img if label is None else (img, label)


def get_ds(p, l, train=True, repeat=False):
    ds = tf.data.Dataset.from_tensor_slices((p, l))
    ds = ds.map(decode, num_parallel_calls=tf.data.AUTOTUNE).cache()
    ds = ds.map(augment, num_parallel_calls=tf.data.AUTOTUNE) if train else ds
    ds = ds.repeat() if repeat else ds
    ds = ds.shuffle(64, seed=CFG.seed) if train else ds
    return ds.batch(CFG.batch).prefetch(tf.data.AUTOTUNE)


train_ds = get_ds(paths[:split], y[:split], repeat=True)
valid_ds = get_ds(paths[split:], y[split:], train=False)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((CFG.size, CFG.size, 3)),
        tf.keras.layers.Conv2D(12, 3, activation="relu"),
        tf.keras.layers.MaxPool2D(),
        tf.keras.layers.SeparableConv2D(24, 3, activation="relu"),
        tf.keras.layers.GlobalMaxPool2D(),
        tf.keras.layers.Dense(len(labels), activation="softmax"),
    ]
)
model.compile(tf.keras.optimizers.Adam(CFG.lr), "sparse_categorical_crossentropy", metrics=["accuracy"])


def lrfn(epoch):
    return CFG.lr * (0.5 * (1 + math.cos(math.pi * epoch / CFG.epochs)))


hist = model.fit(
    train_ds,
    steps_per_epoch=math.ceil(split / CFG.batch),
    epochs=CFG.epochs,
    validation_data=valid_ds,
    class_weight=class_weight,
    callbacks=[tf.keras.callbacks.LearningRateScheduler(lrfn, verbose=1)],
)
print(hist.history)

# test time augmentation
tta = tf.data.Dataset.from_tensor_slices(paths[split:]).map(decode).map(augment).batch(CFG.batch)
preds = np.mean([model.predict(tta, verbose=0) for _ in range(3)], axis=0)
print("TTA accuracy:", (preds.argmax(1) == y[split:]).mean())
print("TTA logloss:", -np.log(preds[np.arange(len(preds)), y[split:]] + 1e-7).mean())
