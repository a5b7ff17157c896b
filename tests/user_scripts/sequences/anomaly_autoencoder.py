"""Timeseries anomaly detection using a Conv1D autoencoder on heart beats."""

import keras
import numpy as np
from keras import layers

f = np.load("ecg.npz")
beats, labels = f["beats"], f["labels"].astype(bool)

n = len(beats)
perm = np.random.RandomState(21).permutation(n)
train_idx, test_idx = perm[: int(n * 0.8)], perm[int(n * 0.8) :]
lo, hi = beats[train_idx].min(), beats[train_idx].max()
beats = (beats - lo) / (hi - lo)

x_train = beats[train_idx][~labels[train_idx]][..., None]  # only normal rhythms
x_test, y_test = beats[test_idx][..., None], labels[test_idx]
print("Training input shape: ", x_train.shape)

model = keras.Sequential(
    [
        layers.Input(shape=(x_train.shape[1], x_train.shape[2])),
        layers.Conv1D(16, 7, padding="same", strides=2, activation="relu"),
        layers.Dropout(rate=0.2),
        layers.Conv1D(8, 7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(8, 7, padding="same", strides=2, activation="relu"),
        layers.Dropout(rate=0.2),
        layers.Conv1DTranspose(16, 7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(1, 7, padding="same"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.005), loss="mae")
history = model.fit(
    x_train,
    x_train,
    epochs=4,
    batch_size=32,
    validation_split=0.1,
    callbacks=[keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, mode="min")],
)
print(history.history["loss"], history.history["val_loss"])

# Get train MAE loss.
x_train_pred = model.predict(x_train)
train_mae_loss = np.mean(np.abs(x_train_pred - x_train), axis=(1, 2))
threshold = np.mean(train_mae_loss) + np.std(train_mae_loss)
print("Reconstruction error threshold: ", threshold)

x_test_pred = model.predict(x_test)
test_mae_loss = np.mean(np.abs(x_test_pred - x_test), axis=(1, 2))
anomalies = test_mae_loss > threshold
print("Number of anomaly samples: ", np.sum(anomalies))
print("accuracy", np.mean(anomalies == y_test), "recall", np.mean(anomalies[y_test]))
print("mean loss of normal", test_mae_loss[~y_test].mean(), "of the others", test_mae_loss[y_test].mean())
