# try all combinations of a few hyper-parameters and keep the best model
import itertools
import random
import time

import numpy as np
import tensorflow as tf

data = np.genfromtxt("penguins.csv", delimiter=",", skip_header=1)
np.random.shuffle(data)
X, y = data[:, 1:], data[:, 0].astype(int)
X = (X - X.mean(0)) / X.std(0)
X_train, X_test = X[:260], X[260:]
y_train, y_test = y[:260], y[260:]

grid = {
    "units": [4, 16],
    "optimizer": ["sgd", "adam"],
    "batch_size": [16, 48],
    "activation": ["relu", "tanh"],
}
combos = list(itertools.product(*grid.values()))
random.shuffle(combos)
combos = combos[:5]  # random search, the full grid takes too long

results = []
best_model, best_loss = None, float("inf")
start = time.time()
for combo in combos:
    p = dict(zip(grid.keys(), combo))
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((4,)),
            tf.keras.layers.Dense(p["units"], activation=p["activation"]),
            tf.keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(optimizer=p["optimizer"], loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    h = model.fit(X_train, y_train, epochs=5, batch_size=p["batch_size"], verbose=0, validation_split=0.2)
    val_loss = h.history["val_loss"][-1]
    print(p, "->", val_loss)
    results.append((val_loss, p))
    if val_loss < best_loss:
        best_loss = val_loss
        best_model = model
print("done in", round(time.time() - start, 1), "seconds")

results.sort(key=lambda r: r[0])
print("best:", results[0])
# a little more training for the winner
best_model.fit(X_train, y_train, epochs=3, batch_size=results[0][1]["batch_size"], verbose=0)
print("test:", best_model.evaluate(X_test, y_test, verbose=0))
best_model.save("best_of_grid.keras")
