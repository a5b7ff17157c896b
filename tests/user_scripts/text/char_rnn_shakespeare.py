"""Text generation with an RNN over characters (TensorFlow tutorial)."""

import os
import time

import numpy as np
import tensorflow as tf

text = open("shakespeare.txt", "rb").read().decode(encoding="utf-8")
print(f"Length of text: {len(text)} characters")
vocab = sorted(set(text))
print(f"{len(vocab)} unique characters")

ids_from_chars = tf.keras.layers.StringLookup(vocabulary=list(vocab), mask_token=None)
chars_from_ids = tf.keras.layers.StringLookup(
    vocabulary=ids_from_chars.get_vocabulary(), invert=True, mask_token=None
)

all_ids = ids_from_chars(tf.strings.unicode_split(text, "UTF-8"))
ids_dataset = tf.data.Dataset.from_tensor_slices(all_ids)
seq_length = 40
sequences = ids_dataset.batch(seq_length + 1, drop_remainder=True)


def split_input_target(sequence):
    input_text = sequence[:-1]
    target_text = sequence[1:]
    return input_text, target_text


dataset = sequences.map(split_input_target)
BATCH_SIZE = 16
BUFFER_SIZE = 10000
dataset = (
    dataset.shuffle(BUFFER_SIZE)
    .batch(BATCH_SIZE, drop_remainder=True)
    .prefetch(tf.data.experimental.AUTOTUNE)
)


class MyModel(tf.keras.Model):
    def __init__(self, vocab_size, embedding_dim, rnn_units):
        super().__init__()
        self.embedding = tf.keras.layers.Embedding(vocab_size, embedding_dim)
        self.gru = tf.keras.layers.GRU(rnn_units, return_sequences=True, return_state=True)
        self.dense = tf.keras.layers.Dense(vocab_size)

    def call(self, inputs, states=None, return_state=False, training=False):
        x = self.embedding(inputs, training=training)
        if states is None:
            states = self.gru.get_initial_state(tf.shape(x)[0])
        x, states = self.gru(x, initial_state=states, training=training)
        x = self.dense(x, training=training)
        if return_state:
            return x, states
        return x


model = MyModel(len(ids_from_chars.get_vocabulary()), 24, 64)
loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
for input_example_batch, target_example_batch in dataset.take(1):
    example_batch_predictions = model(input_example_batch)
    mean_loss = loss(target_example_batch, example_batch_predictions)
    print("Mean loss:", mean_loss.numpy(), "exp:", np.exp(mean_loss))

model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss=loss)
checkpoint_dir = "./training_checkpoints"
checkpoint_callback = tf.keras.callbacks.ModelCheckpoint(
    filepath=os.path.join(checkpoint_dir, "ckpt_{epoch}.weights.h5"), save_weights_only=True
)
start = time.time()
history = model.fit(dataset, epochs=3, callbacks=[checkpoint_callback])
print(f"Training took {time.time() - start:.1f} sec")

states, next_char, result = None, tf.constant(["O"]), ["O"]
for n in range(60):
    input_ids = ids_from_chars(next_char)[:, None]
    predicted_logits, states = model(input_ids, states=states, return_state=True)
    predicted_ids = tf.random.categorical(predicted_logits[:, -1, :] / 0.8, num_samples=1)
    next_char = chars_from_ids(tf.squeeze(predicted_ids, axis=-1))
    result.append(next_char.numpy()[0].decode())
print("".join(result))
print(history.history["loss"])
