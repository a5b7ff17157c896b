# Basic regression: predict fuel efficiency. Sample weights for the newer cars.
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

print(tf.__version__)

# made-up cars: cylinders, displacement, horsepower, weight, acceleration, year, origin
cyl = np.random.choice([4, 6, 8], 400, p=[0.5, 0.25, 0.25])
disp = cyl * 28 + np.random.randn(400) * 20
hp = 0.4 * disp + 30 + np.random.randn(400) * 12
weight = 1500 + 8 * disp + np.random.randn(400) * 250
acc = 24 - 0.08 * hp + np.random.randn(400)
year = np.random.randint(70, 83, 400)
origin = np.random.randint(1, 4, 400)
mpg = 55 - 0.008 * weight - 0.04 * hp + 0.6 * (year - 76) + origin + np.random.randn(400) * 2

dataset = np.stack([cyl, disp, hp, weight, acc, year] + [origin == i for i in (1, 2, 3)], 1).astype("float32")
n_train = int(0.8 * len(dataset))
train_dataset, test_dataset = dataset[:n_train], dataset[n_train:]
train_labels, test_labels = mpg[:n_train], mpg[n_train:]

train_stats = train_dataset.mean(0), train_dataset.std(0)


def norm(x):
    return (x - train_stats[0]) / train_stats[1]


normed_train_data = norm(train_dataset)
normed_test_data = norm(test_dataset)
sample_weight = np.where(year[:n_train] > 76, 2.0, 0.5)


def build_model():
    model = keras.Sequential(
        [
            layers.Dense(64, activation="relu", input_shape=[train_dataset.shape[1]]),
            layers.Dense(64, activation="relu"),
            layers.Dense(1),
        ]
    )
    optimizer = tf.keras.optimizers.RMSprop(0.01)
    model.compile(loss="mse", optimizer=optimizer, metrics=["mae", "mse"], weighted_metrics=["mae"])
    return model


model = build_model()
model.summary()
EPOCHS = 10
dots = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(".", end="", flush=True))
history = model.fit(
    normed_train_data,
    train_labels,
    epochs=EPOCHS,
    validation_split=0.2,
    verbose=0,
    sample_weight=sample_weight,
    callbacks=[dots],
)
print()
for key in history.history:
    print(key, history.history[key][-3:])

results = model.evaluate(normed_test_data, test_labels, verbose=2)
print("Testing set:", results)
test_predictions = model.predict(normed_test_data).flatten()
error = test_predictions - test_labels
print("histogram of errors:", np.histogram(error, bins=8))
