# Tagging words of sentences of different lengths: ragged tensors, filter, bucket_by_sequence_length
import numpy as np
import tensorflow as tf

np.random.seed(100)
tf.random.set_seed(100)

WORDS, TAGS = 80, 4


def make_sentence():
    n = np.random.randint(1, 15)
    words = np.random.randint(1, WORDS, n)
    tags = np.ones(n, int)  # 1 = O
    for i in range(n):
        if words[i] < 10:
            tags[i] = 2
            if i + 1 < n and words[i + 1] % 2:
                tags[i + 1] = 3
    noise = np.random.rand(n) < 0.02
    tags[noise] = 1
    return words, tags


sentences = [make_sentence() for _ in range(600)]
words = tf.ragged.constant([w.tolist() for w, _ in sentences], dtype=tf.int32)
tags = tf.ragged.constant([t.tolist() for _, t in sentences], dtype=tf.int32)

ds = tf.data.Dataset.from_tensor_slices((words, tags))
ds = ds.map(lambda w, t: (w, t))
ds = ds.filter(lambda w, t: tf.shape(w)[0] > 2)
train = ds.take(400).shuffle(400).bucket_by_sequence_length(
    lambda w, t: tf.shape(w)[0], bucket_boundaries=[6, 11], bucket_batch_sizes=[32, 24, 16]
)
val = ds.skip(400).padded_batch(16, padded_shapes=([None], [None]))


class CustomNonPaddingTokenLoss(tf.keras.losses.Loss):
    def __init__(self, name="custom_ner_loss"):
        super().__init__(name=name, reduction=None)

    def call(self, y_true, y_pred):
        loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=False, reduction=None)
        loss = loss_fn(y_true, y_pred)
        mask = tf.cast((y_true > 0), dtype=tf.float32)
        loss = loss * mask
        return tf.reduce_sum(loss) / tf.reduce_sum(mask)


inputs = tf.keras.Input((None,), dtype="int32")
x = tf.keras.layers.Embedding(WORDS, 16)(inputs)
x = tf.keras.layers.Bidirectional(tf.keras.layers.GRU(16, return_sequences=True))(x)
x = tf.keras.layers.Dropout(0.2)(x)
outputs = tf.keras.layers.Dense(TAGS, activation="softmax")(x)
ner = tf.keras.Model(inputs, outputs)
ner.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss=CustomNonPaddingTokenLoss())
h = ner.fit(train, epochs=3, validation_data=val)
print(h.history)


confusion = np.zeros((TAGS, TAGS), int)
for w, t in val:
    p = np.argmax(ner.predict_on_batch(w), axis=-1)
    mask = t.numpy() > 0
    np.add.at(confusion, (t.numpy()[mask], p[mask]), 1)
print("token accuracy", np.trace(confusion) / confusion.sum())
print(confusion)
