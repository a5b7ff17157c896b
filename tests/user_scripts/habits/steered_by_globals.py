# A notebook's way: functions and globals steer the training, and a second model averages the weights
import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(11)
rng = np.random.default_rng(0)
x = rng.normal(size=(320, 8)).astype("float32")
y = 2 * x[:, :1] + np.sin(3 * x[:, 1:2])

model = keras.Sequential(
    [keras.Input((8,)), layers.Dense(16, activation="tanh"), layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(1e-2), "mse")
average = keras.models.clone_model(model)
average.set_weights(model.get_weights())

losses, rates = [], []
best = {"loss": 1e9, "epoch": -1}
model.wait = 0


def on_epoch_end(epoch, logs):
    losses.append(logs["loss"])
    if logs["loss"] < best["loss"]:
        best.update(loss=logs["loss"], epoch=epoch)
    if len(losses) > 3 and losses[-1] > 0.9 * losses[-3]:
        model.wait += 1
    if model.wait == 2:
        model.wait = 0
        model.optimizer.learning_rate = float(model.optimizer.learning_rate) * 0.8
    rates.append(float(model.optimizer.learning_rate))
    pairs = zip(average.get_weights(), model.get_weights())
    average.set_weights([0.5 * a + 0.5 * b for a, b in pairs])


def on_epoch_begin(epoch, logs):
    if np.random.random() < 0.3:  # a kick
        kernel = model.layers[0].kernel
        kernel.assign(kernel + 0.01 * np.random.normal(size=kernel.shape))


steer = keras.callbacks.LambdaCallback(on_epoch_begin=on_epoch_begin, on_epoch_end=on_epoch_end)
history = model.fit(x, y, batch_size=32, epochs=30, verbose=0, callbacks=[steer])

print("losses", losses)
print("rates", rates)
print("best epoch", best["epoch"], "of", len(losses))
print("averaged", average.predict(x[:4], verbose=0).ravel())
print("trained", model.predict(x[:4], verbose=0).ravel())
