"""Structured data classification on Titanic with Keras preprocessing layers and dict inputs."""

import csv

import keras
import numpy as np
import tensorflow as tf
from keras import layers

with open("titanic.csv") as f:
    rows = list(csv.DictReader(f))

ages = [float(r["Age"]) for r in rows if r["Age"]]
median_age = float(np.median(ages))
data = {
    "pclass": np.array([int(r["Pclass"]) for r in rows], dtype="int64"),
    "sex": np.array([r["Sex"] for r in rows]),
    "embarked": np.array([r["Embarked"] or "S" for r in rows]),
    "deck": np.array([r["Cabin"][:1] or "U" for r in rows]),
    "age": np.array([float(r["Age"] or median_age) for r in rows], dtype="float32"),
    "fare": np.array([float(r["Fare"]) for r in rows], dtype="float32"),
    "family": np.array([float(r["SibSp"]) + float(r["Parch"]) for r in rows], dtype="float32"),
}
target = np.array([int(r["Survived"]) for r in rows])

idx = np.random.permutation(len(rows))
val_idx, train_idx = idx[:100], idx[100:]


def df_to_dataset(indices, shuffle=True, batch_size=32):
    ds = tf.data.Dataset.from_tensor_slices(
        ({k: v[indices] for k, v in data.items()}, target[indices])
    )
    if shuffle:
        ds = ds.shuffle(buffer_size=len(indices))
    return ds.batch(batch_size).prefetch(batch_size)


train_ds = df_to_dataset(train_idx)
val_ds = df_to_dataset(val_idx, shuffle=False)

[(train_features, label_batch)] = train_ds.take(1)
print("A batch of ages:", train_features["age"][:5].numpy())


def get_normalization_layer(name, dataset):
    normalizer = layers.Normalization(axis=None)
    feature_ds = dataset.map(lambda x, y: tf.expand_dims(x[name], -1))
    normalizer.adapt(feature_ds)
    return normalizer


def get_category_encoding_layer(name, dataset, dtype, max_tokens=None):
    if dtype == "string":
        index = layers.StringLookup(max_tokens=max_tokens)
    else:
        index = layers.IntegerLookup(max_tokens=max_tokens)
    feature_ds = dataset.map(lambda x, y: x[name])
    index.adapt(feature_ds)
    encoder = layers.CategoryEncoding(num_tokens=index.vocabulary_size(), output_mode="multi_hot")
    return lambda feature: encoder(index(feature))


all_inputs, encoded_features = {}, []
for header in ["age", "fare", "family"]:
    numeric_col = keras.Input(shape=(1,), name=header)
    encoded_features.append(get_normalization_layer(header, train_ds)(numeric_col))
    all_inputs[header] = numeric_col

pclass = keras.Input(shape=(1,), name="pclass", dtype="int64")
encoded_features.append(get_category_encoding_layer("pclass", train_ds, "int64", 5)(pclass))
all_inputs["pclass"] = pclass
for header in ["sex", "embarked", "deck"]:
    col = keras.Input(shape=(1,), name=header, dtype="string")
    encoded_features.append(get_category_encoding_layer(header, train_ds, "string", 8)(col))
    all_inputs[header] = col

x = layers.concatenate(encoded_features)
x = layers.Dense(32, activation="relu")(x)
x = layers.Dropout(0.5)(x)
output = layers.Dense(1)(x)
model = keras.Model(all_inputs, output)
model.compile(
    optimizer=keras.optimizers.Adam(0.005),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(train_ds, epochs=4, validation_data=val_ds)
result = model.evaluate(val_ds, return_dict=True)
print(result)

sample = {"age": 60.0, "fare": 10.0, "family": 0.0, "pclass": 3, "sex": "male", "embarked": "S", "deck": "U"}
predictions = model.predict({name: tf.convert_to_tensor([value]) for name, value in sample.items()})
prob = tf.nn.sigmoid(predictions[0])
print("This particular passenger had a %.4f percent probability of surviving." % (100 * prob[0]))
