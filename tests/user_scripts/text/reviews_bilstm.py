"""Sentiment with a bidirectional LSTM; own tokenizer, list of files from glob."""

import glob
import os
import random
import re
from collections import Counter

import numpy as np
from tensorflow.keras.callbacks import EarlyStopping, ReduceLROnPlateau
from tensorflow.keras.layers import LSTM, Bidirectional, Dense, Dropout, Embedding, SpatialDropout1D
from tensorflow.keras.models import Sequential
from tensorflow.keras.preprocessing.sequence import pad_sequences

random.seed(99)

MAX_WORDS = 100
MAX_LEN = 40

files = glob.glob("reviews/*/*.txt")
random.shuffle(files)

texts, labels = [], []
for path in files:
    with open(path, encoding="utf-8") as f:
        text = f.read().lower()
    text = re.sub(r"<[^>]+>", " ", text)
    texts.append(re.findall(r"[a-z']+", text))
    labels.append(1 if os.path.basename(os.path.dirname(path)) == "pos" else 0)

counter = Counter(w for t in texts for w in t)
word_index = {w: i + 2 for i, (w, _) in enumerate(counter.most_common(MAX_WORDS - 2))}
sequences = [[word_index.get(w, 1) for w in t] for t in texts]
X = pad_sequences(sequences, maxlen=MAX_LEN)
y = np.asarray(labels)
print("Shape of data tensor:", X.shape, "positive:", y.mean())

split = int(len(X) * 0.75)
X_train, X_test = X[:split], X[split:]
y_train, y_test = y[:split], y[split:]

model = Sequential()
model.add(Embedding(MAX_WORDS, 16, mask_zero=True))
model.add(SpatialDropout1D(0.2))
model.add(Bidirectional(LSTM(12, dropout=0.2, return_sequences=False)))
model.add(Dense(16, activation="relu"))
model.add(Dropout(0.3))
model.add(Dense(1, activation="sigmoid"))
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])

hist = model.fit(
    X_train,
    y_train,
    epochs=4,
    batch_size=16,
    validation_split=0.1,
    callbacks=[
        EarlyStopping(monitor="val_loss", patience=2, min_delta=0.0001),
        ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, verbose=1),
    ],
)
loss, acc = model.evaluate(X_test, y_test, batch_size=16)
print(f"Test set\n  Loss: {loss}\n  Accuracy: {acc}")
print(hist.history)
