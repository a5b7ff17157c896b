"""Stateful LSTM on a long signal cut into consecutive batches; states are reset between epochs."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

batch_size = 16
tsteps = 8
n = 16 * 8 * 6

rs = np.random.RandomState(0)
signal = np.cos(np.arange(n + 20) / 11.0) * np.exp(-0.0005 * np.arange(n + 20)) + rs.normal(0, 0.1, n + 20)
# running mean of the last 12 values: needs memory longer than tsteps
target = np.convolve(signal, np.ones(12) / 12, mode="full")[: n + 20]

# batch i must follow batch i-1 in each row
x = signal[:n].reshape(batch_size, -1, tsteps, 1)
y = target[:n].reshape(batch_size, -1, tsteps, 1)
x_train = np.concatenate([x[:, i] for i in range(x.shape[1])])
y_train = np.concatenate([y[:, i] for i in range(y.shape[1])])
print("shapes", x_train.shape, y_train.shape)

model = keras.Sequential(
    [
        keras.Input(batch_shape=(batch_size, tsteps, 1)),
        layers.LSTM(20, return_sequences=True, stateful=True),
        layers.Dense(1),
    ]
)
model.compile(loss="mse", optimizer=keras.optimizers.Adam(0.01))


class ResetStates(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        for layer in self.model.layers:
            if hasattr(layer, "reset_states"):
                layer.reset_states()


losses = []
h = model.fit(x_train, y_train, batch_size=batch_size, epochs=6, shuffle=False, verbose=0, callbacks=[ResetStates()])
print("loss by epoch", h.history["loss"])

model.layers[0].reset_states()
predicted = model.predict(x_train, batch_size=batch_size, verbose=0)
print("Mean squared error:", np.mean((predicted - y_train) ** 2))
