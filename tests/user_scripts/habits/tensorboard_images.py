"""Logs a confusion matrix and learning rates by hand, as TensorBoard's guide does."""

import glob

import keras
import numpy as np
import tensorflow as tf

x = np.load("ecg.npz")["beats"]
y = np.load("ecg.npz")["labels"].astype("int32")
n = 480

model = keras.Sequential(
    [
        keras.Input((96,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

logdir = "logs/by_hand"
file_writer_cm = tf.summary.create_file_writer(logdir + "/cm")
scalars = tf.summary.create_file_writer(logdir + "/metrics")
scalars.set_as_default()


def log_confusion_matrix(epoch, logs):
    test_pred = np.argmax(model.predict(x[n:], verbose=0), axis=1)
    cm = tf.math.confusion_matrix(y[n:], test_pred, num_classes=2)
    with file_writer_cm.as_default():
        tf.summary.image("epoch_confusion_matrix", tf.cast(cm, tf.float32)[None, :, :, None] / 200.0, step=epoch)
        tf.summary.scalar("hits", tf.linalg.trace(tf.cast(cm, tf.float32)), step=epoch)
    file_writer_cm.flush()
    tf.summary.scalar("learning rate", data=float(model.optimizer.learning_rate), step=epoch)
    scalars.flush()


model.fit(
    x[:n],
    y[:n],
    epochs=4,
    batch_size=32,
    verbose=0,
    callbacks=[
        keras.callbacks.TensorBoard("logs/keras"),
        keras.callbacks.LambdaCallback(on_epoch_end=log_confusion_matrix),
    ],
)

for name in ("by_hand/cm", "by_hand/metrics", "keras/train"):
    points = []
    for file in glob.glob(f"logs/{name}/events*"):
        for event in tf.compat.v1.train.summary_iterator(file):
            for value in event.summary.value:
                points.append((event.step, value.tag))
    print(name, sorted(p for p in points if "keras" not in p[1]))
