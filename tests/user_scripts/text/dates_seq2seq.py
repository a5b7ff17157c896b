# Translate dates with an encoder-decoder and attention; padded batches from a generator
import random

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

random.seed(5)
pairs = [line.rstrip("\n").split("\t") for line in open("dates.txt")]
random.shuffle(pairs)

chars = sorted({c for a, b in pairs for c in a + b})
stoi = {c: i + 3 for i, c in enumerate(chars)}  # 0 pad, 1 start, 2 end
itos = {i: c for c, i in stoi.items()}
VOCAB = len(stoi) + 3


def encode(s):
    return [1] + [stoi[c] for c in s] + [2]


def gen(data):
    def g():
        for a, b in data:
            src, tgt = encode(a), encode(b)
            yield {"src": src, "tgt": tgt[:-1]}, tgt[1:]
    return g


sig = ({"src": tf.TensorSpec([None], tf.int32), "tgt": tf.TensorSpec([None], tf.int32)},
       tf.TensorSpec([None], tf.int32))


def dataset(data, training):
    ds = tf.data.Dataset.from_generator(gen(data), output_signature=sig)
    ds = ds.cache()
    if training:
        ds = ds.shuffle(len(data))
    return ds.padded_batch(32).prefetch(tf.data.AUTOTUNE)


train_ds = dataset(pairs[:500], True)
val_ds = dataset(pairs[500:], False)


def masked_loss(y_true, y_pred):
    loss = tf.keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    mask = tf.cast(y_true != 0, loss.dtype)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


def masked_acc(y_true, y_pred):
    y_pred = tf.cast(tf.argmax(y_pred, axis=-1), y_true.dtype)
    match = tf.cast(y_true == y_pred, tf.float32)
    mask = tf.cast(y_true != 0, tf.float32)
    return tf.reduce_sum(match * mask) / tf.reduce_sum(mask)


src = layers.Input((None,), name="src", dtype="int32")
tgt = layers.Input((None,), name="tgt", dtype="int32")
emb = layers.Embedding(VOCAB, 24, mask_zero=True)
enc, state = layers.GRU(40, return_sequences=True, return_state=True)(emb(src))
dec = layers.GRU(40, return_sequences=True)(emb(tgt), initial_state=state)
ctx = layers.MultiHeadAttention(2, 20)(query=dec, value=enc)
x = layers.LayerNormalization()(layers.Add()([dec, ctx]))
logits = layers.Dense(VOCAB)(x)
model = tf.keras.Model({"src": src, "tgt": tgt}, logits)
model.compile(tf.keras.optimizers.Adam(5e-3, clipnorm=1.0), loss=masked_loss, metrics=[masked_acc])
hist = model.fit(train_ds, epochs=3, validation_data=val_ds, verbose=2)
print(hist.history)


def translate(s):
    out = [1]
    for _ in range(12):
        p = model({"src": np.array([encode(s)]), "tgt": np.array([out])}, training=False)
        nxt = int(np.argmax(p[0, -1]))
        if nxt == 2:
            break
        out.append(nxt)
    return "".join(itos.get(i, "?") for i in out[1:])


for s, t in pairs[500:503]:
    print(s, "->", translate(s), "| expected", t)
