# SMS spam: TextLineDataset, split with filter on a hash bucket, vectorizer inside the model
import tensorflow as tf
from tensorflow.keras import layers

tf.keras.utils.set_random_seed(2023)

lines = tf.data.TextLineDataset("sms_spam.tsv")


def split_line(line):
    parts = tf.strings.split(line, "\t", maxsplit=1)
    return parts[1], tf.where(parts[0] == "spam", 1.0, 0.0)


def is_test(text, label):
    return tf.strings.to_hash_bucket_fast(text, 5) == 0


ds = lines.map(split_line, num_parallel_calls=tf.data.AUTOTUNE)
train_ds = ds.filter(lambda t, l: not is_test(t, l))
test_ds = ds.filter(is_test)

train_ds = train_ds.shuffle(500).batch(32).prefetch(1)
test_ds = test_ds.batch(32)

vectorizer = layers.TextVectorization(max_tokens=60, output_mode="tf_idf", ngrams=2)
vectorizer.adapt(train_ds.map(lambda t, l: t))
print(vectorizer.get_vocabulary()[:12])

model = tf.keras.Sequential(
    [
        layers.Input(shape=(), dtype=tf.string),
        vectorizer,
        layers.Dense(16, activation="relu", kernel_regularizer="l2"),
        layers.Dropout(0.2),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    optimizer="adam",
    loss="binary_crossentropy",
    metrics=["accuracy", tf.keras.metrics.Recall()],
)
history = model.fit(train_ds, epochs=4, validation_data=test_ds)
print(history.history["loss"], history.history["val_loss"])
model.save("spam_model.keras")

texts = ["win a free prize now", "see you at home later"]
print(dict(zip(texts, model.predict(tf.constant(texts))[:, 0])))
