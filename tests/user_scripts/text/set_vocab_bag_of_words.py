"""Bag of words by hand: vocabulary from a set, unknown words into hash buckets."""

import os

import numpy as np
import keras
from keras import layers

def load(folder):
    docs, y = [], []
    for i, cls in enumerate(["neg", "pos"]):
        for name in os.listdir(os.path.join(folder, cls)):
            text = open(os.path.join(folder, cls, name)).read()
            docs.append(text.lower().replace(".", " ").replace("!", " ").replace(",", " ").split())
            y.append(i)
    return docs, np.array(y)


docs, y = load("reviews")
p = np.random.permutation(len(docs))
docs = [docs[i] for i in p]
y = y[p]

counts = {}
for d in docs[:150]:
    for w in d:
        counts[w] = counts.get(w, 0) + 1
words = set(w for w in counts if counts[w] > 8)
word2id = {w: i for i, w in enumerate(words)}
BUCKETS = 16
dim = len(words) + BUCKETS
print("vocabulary", len(words), list(words)[:8])


def vec(doc):
    v = np.zeros(dim)
    for w in doc:
        if w in word2id:
            v[word2id[w]] += 1
        else:
            v[len(words) + hash(w) % BUCKETS] += 1
    return v / max(len(doc), 1)


X = np.array([vec(d) for d in docs])
X_train, X_test, y_train, y_test = X[:150], X[150:], y[:150], y[150:]

model = keras.Sequential()
model.add(layers.Dense(32, activation="relu"))
model.add(layers.Dropout(0.4))
model.add(layers.Dense(1, activation="sigmoid"))
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
model.fit(X_train, y_train, epochs=10, batch_size=16, verbose=0)
print("train", model.evaluate(X_train, y_train, verbose=0))
print("test", model.evaluate(X_test, y_test, verbose=0))
w = model.layers[0].get_weights()[0]
order = np.argsort(-np.linalg.norm(w[: len(words)], axis=1))[:5]
names = {i: n for n, i in word2id.items()}
print([names[int(i)] for i in order], np.linalg.norm(w))
