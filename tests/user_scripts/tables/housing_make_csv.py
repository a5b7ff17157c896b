# California housing: tf.data.experimental.make_csv_dataset, packed numeric features
import functools

import tensorflow as tf

tf.random.set_seed(1234)

NUMERIC = ["longitude", "latitude", "housing_median_age", "total_rooms", "total_bedrooms",
           "population", "households", "median_income"]
COLUMNS = NUMERIC + ["ocean_proximity", "median_house_value"]
LABEL = "median_house_value"
DEFAULTS = [0.0] * 8 + ["UNKNOWN", 0.0]


def get_dataset(file_path, **kwargs):
    return tf.data.experimental.make_csv_dataset(
        file_path,
        batch_size=32,
        column_names=COLUMNS,
        column_defaults=DEFAULTS,
        label_name=LABEL,
        na_value="",
        num_epochs=1,
        ignore_errors=True,
        **kwargs,
    )


class PackNumericFeatures:
    def __init__(self, names):
        self.names = names

    def __call__(self, features, labels):
        numeric = [tf.cast(features.pop(name), tf.float32) for name in self.names]
        features["numeric"] = tf.stack(numeric, axis=-1)
        return features, labels / 100000.0


raw_train = get_dataset("housing.csv", shuffle_buffer_size=1000)
packed = raw_train.map(PackNumericFeatures(NUMERIC))

# one pass over the file for the statistics
numeric = tf.concat([f["numeric"] for f, _ in packed], axis=0)
mean = tf.reduce_mean(numeric, axis=0)
std = tf.math.reduce_std(numeric, axis=0)
print("mean", mean.numpy())


def normalize(features, labels, mean, std):
    features["numeric"] = (features["numeric"] - mean) / std
    return features, labels


train = packed.map(functools.partial(normalize, mean=mean, std=std)).shuffle(50)
test = train.take(5)
train = train.skip(5)

numeric_in = tf.keras.Input((8,), name="numeric")
ocean_in = tf.keras.Input((1,), name="ocean_proximity", dtype=tf.string)
lookup = tf.keras.layers.StringLookup(
    vocabulary=["<1H OCEAN", "INLAND", "NEAR OCEAN", "NEAR BAY"], output_mode="one_hot"
)
x = tf.keras.layers.Concatenate()([numeric_in, lookup(ocean_in)])
x = tf.keras.layers.Dense(32, activation="relu")(x)
x = tf.keras.layers.Dense(32, activation="relu")(x)
out = tf.keras.layers.Dense(1)(x)
model = tf.keras.Model([numeric_in, ocean_in], out)
model.compile("adam", "mse", metrics=["mae"])

model.fit(train, epochs=4)
test_loss, test_mae = model.evaluate(test)
print("\n\nTest Loss {}, Test MAE {}".format(test_loss, test_mae))
predictions = model.predict(test)
for prediction, value in zip(predictions[:6], list(test)[0][1][:6]):
    print(f"Predicted value: {prediction[0] * 1e5:.2f} | Actual: {value.numpy() * 1e5:.2f}")
