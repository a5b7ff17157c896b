"""Checkpoints as in TensorFlow's guide: a manager in a callback, the best one restored at the end."""

import os

import keras
import numpy as np
import tensorflow as tf

x = np.load("ecg.npz")["beats"]
y = np.load("ecg.npz")["labels"].astype("float32")
n = 480

model = keras.Sequential(
    [
        keras.Input((96,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
optimizer = keras.optimizers.Adam(5e-3)
model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])

ckpt = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(ckpt, "./tf_ckpts", max_to_keep=2)
ckpt.restore(manager.latest_checkpoint)
print("Restored" if manager.latest_checkpoint else "Initializing from scratch.")


def save_checkpoint(epoch, logs):
    path = manager.save()
    print("saved", path, "of", [os.path.basename(p) for p in manager.checkpoints])


class KeepBest(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.best = tf.train.Checkpoint(net=model)
        self.lowest = float("inf")

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_loss"] < self.lowest:
            self.lowest = logs["val_loss"]
            self.best.write("best/weights")

    def on_train_end(self, logs=None):
        print("count", int(ckpt.save_counter), "best", self.lowest)


model.fit(
    x[:n],
    y[:n],
    epochs=5,
    batch_size=32,
    validation_data=(x[n:], y[n:]),
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=save_checkpoint), KeepBest()],
    verbose=0,
)
print(sorted(os.listdir("tf_ckpts")), sorted(os.listdir("best")))
print(tf.train.latest_checkpoint("tf_ckpts"), model.evaluate(x[n:], y[n:], verbose=0))

tf.train.Checkpoint(net=model).read("best/weights").expect_partial()
print("best again", model.evaluate(x[n:], y[n:], verbose=0))
print("saved", ckpt.save("by_hand/model"), int(ckpt.save_counter))

ckpt.restore(manager.latest_checkpoint).assert_consumed()
print("last again", model.evaluate(x[n:], y[n:], verbose=0), int(optimizer.iterations))
model.fit(x[:n], y[:n], epochs=2, batch_size=32, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=save_checkpoint)])
print(sorted(os.listdir("tf_ckpts")), [os.path.basename(p) for p in manager.checkpoints])

module = tf.Module()
module.model = model
module.serve = tf.function(lambda beats: model(beats), input_signature=[tf.TensorSpec((None, 96))])
tf.saved_model.save(module, "exported")
served = tf.saved_model.load("exported")
print("served", float(tf.reduce_sum(served.serve(tf.constant(x[:8], tf.float32)))))
