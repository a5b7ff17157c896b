"""Begins with an empty folder each time, and finds a learning rate before it trains."""

import os
import shutil

import keras
import numpy as np

x = np.load("ecg.npz")["beats"]
y = np.load("ecg.npz")["labels"].astype("float32")
n = 480
OUT = "out"
if os.path.exists(OUT):
    shutil.rmtree(OUT)  # start from a clean directory
os.makedirs(OUT, exist_ok=True)

model = keras.Sequential(
    [
        keras.Input((96,)),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])


class LearningRateFinder(keras.callbacks.Callback):
    def __init__(self, lowest, highest, steps):
        super().__init__()
        self.factor = (highest / lowest) ** (1 / steps)
        self.rate = lowest
        self.rates, self.losses = [], []

    def on_train_begin(self, logs=None):
        self.model.save_weights(OUT + "/before.weights.h5")
        self.old = float(self.model.optimizer.learning_rate)
        self.model.optimizer.learning_rate = self.rate

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(self.rate)
        self.losses.append(logs["loss"])
        self.rate *= self.factor
        self.model.optimizer.learning_rate = self.rate

    def on_train_end(self, logs=None):
        self.model.load_weights(OUT + "/before.weights.h5")
        self.model.optimizer.learning_rate = self.old


finder = LearningRateFinder(1e-4, 0.1, 30)
model.fit(x[:n], y[:n], batch_size=32, epochs=2, shuffle=False, verbose=0, callbacks=[finder])
print("finder", finder.rates[-1], finder.losses[::10], int(model.optimizer.iterations))
history = model.fit(
    x[:n],
    y[:n],
    batch_size=32,
    epochs=6,
    verbose=0,
    validation_data=(x[n:], y[n:]),
    callbacks=[
        keras.callbacks.ModelCheckpoint(OUT + "/m{epoch:02d}.keras"),
        keras.callbacks.CSVLogger(OUT + "/log.csv"),
    ],
)
print(history.history["loss"], history.history["val_accuracy"])
print(sorted(os.listdir(OUT)), sum(1 for _ in open(OUT + "/log.csv")))
print(int(model.optimizer.iterations), [float(np.sum(v)) for v in model.optimizer.variables[2:]])
