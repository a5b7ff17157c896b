# forecasting demand: zipped datasets (x, y, weight), repeat, steps_per_epoch
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
LOOKBACK, HORIZON, BATCH_SIZE = 28, 7, 32

days = np.arange(900)
demand = (
    50 + 0.02 * days + 12 * np.sin(2 * np.pi * days / 7) + 6 * np.cos(2 * np.pi * days / 30)
    + np.random.gamma(2.0, 3.0, 900)
).astype("float32")
demand = (demand - demand[:700].mean()) / demand[:700].std()
n_windows = 700 - LOOKBACK - HORIZON

x = tf.data.Dataset.from_tensor_slices(np.stack([demand[i : i + LOOKBACK] for i in range(n_windows)]))
y = tf.data.Dataset.from_tensor_slices(
    np.stack([demand[i + LOOKBACK : i + LOOKBACK + HORIZON] for i in range(n_windows)])
)
# older windows count less
w = tf.data.Dataset.range(n_windows).map(lambda i: tf.exp((tf.cast(i, tf.float32) - n_windows) / 400.0))
train = tf.data.Dataset.zip((x, y, w)).repeat().shuffle(256).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

xt = np.stack([demand[i : i + LOOKBACK] for i in range(700, 900 - LOOKBACK - HORIZON)])
yt = np.stack([demand[i + LOOKBACK : i + LOOKBACK + HORIZON] for i in range(700, 900 - LOOKBACK - HORIZON)])

inputs = keras.Input((LOOKBACK,))
h = keras.layers.Reshape((LOOKBACK // 7, 7))(inputs)
h = keras.layers.GRU(24)(h)
h = keras.layers.Concatenate()([h, inputs])
outputs = keras.layers.Dense(HORIZON)(h)
model = keras.Model(inputs, outputs)
lr = keras.optimizers.schedules.ExponentialDecay(0.01, decay_steps=20, decay_rate=0.8, staircase=True)
model.compile(
    optimizer=keras.optimizers.Adam(lr, global_clipnorm=1.0), loss="mse", weighted_metrics=["mae"], metrics=["mape"]
)
steps_per_epoch = n_windows // BATCH_SIZE
history = model.fit(train, steps_per_epoch=steps_per_epoch, epochs=3, validation_data=(xt, yt), verbose=2)
print({k: v[-1] for k, v in history.history.items()})
print("learning rate now", float(model.optimizer.learning_rate), "after", int(model.optimizer.iterations), "steps")
error = model.predict(xt, verbose=0) - yt
print("rmse per day ahead:", np.sqrt((error**2).mean(axis=0)))
