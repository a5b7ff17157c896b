"""Balanced batches from a PyDataset with worker threads; members are drawn anew in each epoch."""

import math

import keras
import numpy as np
import tensorflow as tf

BATCH = 24


class BalancedBatches(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, augment=False, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = x, y
        self.batch_size = batch_size
        self.augment = augment
        self.rng = np.random.RandomState(5)
        self.minority = np.where(y == 1)[0]
        self.majority = np.where(y == 0)[0]
        self.on_epoch_end()

    def __len__(self):
        return math.ceil(len(self.majority) / (self.batch_size // 2))

    def __getitem__(self, i):
        half = self.batch_size // 2
        a = self.majority[i * half : (i + 1) * half]
        b = self.draw[i * half : i * half + len(a)]
        idx = np.concatenate([a, b])
        x = self.x[idx]
        if self.augment:
            # random gain, offset and noise
            x = x * np.random.uniform(0.9, 1.1, (len(x), 1)) + np.random.normal(0, 0.03, x.shape)
        return x[..., None].astype("float32"), self.y[idx].astype("float32")

    def on_epoch_end(self):
        self.rng.shuffle(self.majority)
        self.draw = self.rng.choice(self.minority, len(self.majority))


f = np.load("ecg.npz")
beats, labels = f["beats"], f["labels"]
train = BalancedBatches(beats[:450], labels[:450], BATCH, augment=True, workers=2, use_multiprocessing=False, max_queue_size=8)
x_test, y_test = beats[450:, :, None], labels[450:].astype("float32")

model = keras.Sequential(
    [
        keras.Input((96, 1)),
        keras.layers.Conv1D(8, 7, strides=3, activation="relu"),
        keras.layers.Conv1D(8, 5, strides=2, activation="relu"),
        keras.layers.GRU(12),
        keras.layers.Dense(1),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(3e-3),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0)],
)
history = model.fit(train, epochs=4, validation_data=(x_test, y_test), verbose=2)
print(history.history)
logits = model.predict(x_test, verbose=0)[:, 0]
tp, fp = np.sum((logits > 0) & (y_test == 1)), np.sum((logits > 0) & (y_test == 0))
print("tp", tp, "fp", fp, "mean logit", logits.mean())
