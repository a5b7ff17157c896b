"""Bagging of small networks: each on its own bootstrap sample, predictions averaged."""

import numpy as np
import keras

N_MODELS = 3


def load_data():
    # concentric rings
    n = 600
    r = np.random.choice([0.5, 1.0, 1.6], size=n)
    labels = np.searchsorted([0.5, 1.0, 1.6], r)
    angle = np.random.uniform(0, 2 * np.pi, n)
    r = r + np.random.normal(0, 0.2, n)
    return np.stack([r * np.cos(angle), r * np.sin(angle)], 1), labels


def get_model():
    m = keras.Sequential(
        [
            keras.layers.Dense(24, activation="relu"),
            keras.layers.Dense(24, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    m.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return m


X, y = load_data()
X_test, y_test = load_data()
print(X.mean(), y.mean())

models = []
for i in range(N_MODELS):
    idx = np.random.choice(len(X), size=len(X), replace=True)
    out_of_bag = np.setdiff1d(np.arange(len(X)), idx)
    m = get_model()
    m.fit(X[idx], y[idx], epochs=6, batch_size=16, verbose=0)
    print("model", i, "out of bag:", m.evaluate(X[out_of_bag], y[out_of_bag], verbose=0))
    m.save(f"bag_{i}.keras")
    models.append(m)

probs = np.mean([m.predict(X_test, verbose=0) for m in models], axis=0)
print("single:", [m.evaluate(X_test, y_test, verbose=0)[1] for m in models])
print("ensemble accuracy:", np.mean(probs.argmax(1) == y_test))
print("ensemble log loss:", -np.mean(np.log(probs[np.arange(len(y_test)), y_test] + 1e-9)))

# stacking model on top of the frozen members
inp = keras.Input((2,))
for m in models:
    m.trainable = False
stack = keras.layers.concatenate([m(inp) for m in models])
out = keras.layers.Dense(3, activation="softmax")(stack)
stacked = keras.Model(inp, out)
stacked.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
h = stacked.fit(X, y, epochs=2, batch_size=32, verbose=2, validation_data=(X_test, y_test))
print(h.history)
