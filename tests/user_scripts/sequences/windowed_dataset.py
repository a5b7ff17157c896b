# Sequences, Time Series and Prediction, week 3: windowed dataset, LR schedule sweep, Lambda layers
import numpy as np
import tensorflow as tf

tf.keras.backend.clear_session()
tf.random.set_seed(51)
np.random.seed(51)


def trend(time, slope=0):
    return slope * time


def seasonal_pattern(season_time):
    """Just an arbitrary pattern, you can change it if you wish"""
    return np.where(season_time < 0.4, np.cos(season_time * 2 * np.pi), 1 / np.exp(3 * season_time))


def seasonality(time, period, amplitude=1, phase=0):
    season_time = ((time + phase) % period) / period
    return amplitude * seasonal_pattern(season_time)


def noise(time, noise_level=1, seed=None):
    rnd = np.random.RandomState(seed)
    return rnd.randn(len(time)) * noise_level


time = np.arange(700, dtype="float32")
series = 10 + trend(time, 0.05) + seasonality(time, period=90, amplitude=20)
series += noise(time, noise_level=3, seed=42)

split_time = 500
time_train = time[:split_time]
x_train = series[:split_time]
x_valid = series[split_time:]

window_size = 20
batch_size = 32
shuffle_buffer_size = 100


def windowed_dataset(series, window_size, batch_size, shuffle_buffer):
    series = tf.expand_dims(series, axis=-1)
    ds = tf.data.Dataset.from_tensor_slices(series)
    ds = ds.window(window_size + 1, shift=1, drop_remainder=True)
    ds = ds.flat_map(lambda w: w.batch(window_size + 1))
    ds = ds.shuffle(shuffle_buffer)
    ds = ds.map(lambda w: (w[:-1], w[1:]))
    return ds.batch(batch_size).prefetch(1)


def model_forecast(model, series, window_size):
    ds = tf.data.Dataset.from_tensor_slices(series)
    ds = ds.window(window_size, shift=1, drop_remainder=True)
    ds = ds.flat_map(lambda w: w.batch(window_size))
    ds = ds.batch(32).prefetch(1)
    return model.predict(ds)


train_set = windowed_dataset(x_train, window_size, batch_size, shuffle_buffer_size)


def build():
    return tf.keras.models.Sequential(
        [
            tf.keras.layers.Input((None, 1)),
            tf.keras.layers.Conv1D(16, 5, strides=1, padding="causal", activation="relu"),
            tf.keras.layers.LSTM(16, return_sequences=True),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(1),
            tf.keras.layers.Lambda(lambda x: x * 100.0),
        ]
    )


model = build()
lr_schedule = tf.keras.callbacks.LearningRateScheduler(lambda epoch: 1e-6 * 10 ** (epoch / 2))
optimizer = tf.keras.optimizers.SGD(learning_rate=1e-6, momentum=0.9)
model.compile(loss=tf.keras.losses.Huber(), optimizer=optimizer, metrics=["mae"])
history = model.fit(train_set, epochs=5, callbacks=[lr_schedule], verbose=0)
print(list(zip(history.history["learning_rate"], history.history["loss"])))

model = build()
model.compile(loss=tf.keras.losses.Huber(), optimizer=tf.keras.optimizers.SGD(1e-5, momentum=0.9), metrics=["mae"])
history = model.fit(train_set, epochs=4)
rnn_forecast = model_forecast(model, series[..., np.newaxis], window_size)
rnn_forecast = rnn_forecast[split_time - window_size : -1, -1, 0]
print(rnn_forecast[:5])
print("MAE on validation:", np.abs(x_valid - rnn_forecast).mean())
