"""Click prediction: hashed categories, a crossed feature, features computed in the dataset map."""
import keras
import numpy as np
import tensorflow as tf

N = 1000
BATCH = 50
cities = ["london", "paris", "berlin", "madrid", "rome", "vienna", "oslo", "porto"]
devices = ["ios", "android", "web"]

rng = np.random.default_rng()  # new data in each run
raw = {
    "city": rng.choice(cities, N),
    "device": rng.choice(devices, N),
    "hour": rng.integers(0, 24, N),
    "price": rng.lognormal(1, 0.6, N).astype("float32"),
}
z = (
    0.8 * (raw["device"] == "ios")
    + 0.9 * np.isin(raw["city"], ["paris", "rome"]) * (raw["device"] == "web")
    - 0.3 * raw["price"]
    + 0.6 * np.sin(raw["hour"] / 24 * 6.283)
)
clicked = (rng.random(N) < 1 / (1 + np.exp(-z))).astype("float32")

hash_city = keras.layers.Hashing(num_bins=16, output_mode="one_hot")
lookup_device = keras.layers.StringLookup(vocabulary=devices, output_mode="one_hot")
cross = keras.layers.HashedCrossing(num_bins=32, output_mode="one_hot")
bucket = keras.layers.Discretization(bin_boundaries=[6, 12, 18], output_mode="one_hot")


def features(row, label):
    x = tf.concat(
        [
            tf.cast(hash_city(row["city"]), tf.float32),
            tf.cast(lookup_device(row["device"]), tf.float32),
            tf.cast(cross((row["city"], row["device"])), tf.float32),
            tf.cast(bucket(row["hour"]), tf.float32),
            tf.math.log1p(row["price"])[:, None],
        ],
        axis=-1,
    )
    return x, label


ds = tf.data.Dataset.from_tensor_slices((raw, clicked))
ds = ds.batch(BATCH).map(features).unbatch()
train = ds.take(800).cache().shuffle(800).batch(BATCH)
test = ds.skip(800).batch(BATCH)

model = keras.Sequential([keras.layers.Dense(24, "gelu"), keras.layers.Dense(1, "sigmoid")])
model.compile(
    keras.optimizers.Adam(0.01),
    loss=keras.losses.BinaryFocalCrossentropy(gamma=1.0),
    metrics=["AUC", "Precision"],
)
model.fit(train, epochs=4, verbose=2)
print("test", model.evaluate(test, verbose=0))
y_true = np.concatenate([y for _, y in test])
y_prob = model.predict(test, verbose=0)[:, 0]
print("mean click rate", y_true.mean(), "predicted", y_prob.mean())
print("log loss", -np.mean(y_true * np.log(y_prob) + (1 - y_true) * np.log(1 - y_prob)))
