"""
Title: Text classification from scratch
(raw text files on disk, TextVectorization in the dataset, Conv1D; after the keras.io example)
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
from keras import layers
from keras.layers import TextVectorization
import string
import re

batch_size = 16
raw_train_ds = keras.utils.text_dataset_from_directory(
    "reviews",
    batch_size=batch_size,
    validation_split=0.2,
    subset="training",
    seed=1337,
)
raw_val_ds = keras.utils.text_dataset_from_directory(
    "reviews",
    batch_size=batch_size,
    validation_split=0.2,
    subset="validation",
    seed=1337,
)
print(f"Number of batches in raw_train_ds: {raw_train_ds.cardinality()}")

for text_batch, label_batch in raw_train_ds.take(1):
    for i in range(2):
        print(text_batch.numpy()[i])
        print(label_batch.numpy()[i])


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, f"[{re.escape(string.punctuation)}]", "")


max_features = 500
embedding_dim = 16
sequence_length = 60

vectorize_layer = TextVectorization(
    standardize=custom_standardization,
    max_tokens=max_features,
    output_mode="int",
    output_sequence_length=sequence_length,
)
# Let's make a text-only dataset (no labels):
text_ds = raw_train_ds.map(lambda x, y: x)
vectorize_layer.adapt(text_ds)


def vectorize_text(text, label):
    text = tf.expand_dims(text, -1)
    return vectorize_layer(text), label


# Do async prefetching / buffering of the data for best performance on GPU.
train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=10)
val_ds = raw_val_ds.map(vectorize_text).cache().prefetch(buffer_size=10)

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(max_features, embedding_dim)(inputs)
x = layers.Dropout(0.5)(x)
x = layers.Conv1D(32, 5, padding="valid", activation="relu", strides=2)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(32, activation="relu")(x)
x = layers.Dropout(0.5)(x)
predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, predictions)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])

epochs = 3
model.fit(train_ds, validation_data=val_ds, epochs=epochs)

# An end-to-end model that takes raw strings
inputs = keras.Input(shape=(1,), dtype="string")
outputs = model(vectorize_layer(inputs))
end_to_end_model = keras.Model(inputs, outputs)
end_to_end_model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
print(end_to_end_model.evaluate(raw_val_ds))
print(end_to_end_model.predict(tf.constant(["What a brilliant plot!", "The pace was awful."])))
