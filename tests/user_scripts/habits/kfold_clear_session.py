"""K-fold cross-validation by hand, a new model and a cleared session in each fold."""

import gc

import keras
import numpy as np
from keras import backend as K
from keras.layers import BatchNormalization, Dense, Dropout, Input
from keras.models import Sequential, load_model

SEED = 2022
N_FOLDS = 3
BATCH = 64

rng = np.random.default_rng(SEED)
X = rng.normal(size=(720, 10)).astype("float32")
y = (X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + 0.5 * X[:, 3] + rng.normal(0, 0.4, 720)).astype("float32")
X_test = rng.normal(size=(100, 10)).astype("float32")


class KFold:
    """as in sklearn, which is not installed here"""

    def __init__(self, n_splits, shuffle=True, random_state=None):
        self.n_splits, self.shuffle, self.random_state = n_splits, shuffle, random_state

    def split(self, X):
        idx = np.arange(len(X))
        if self.shuffle:
            np.random.RandomState(self.random_state).shuffle(idx)
        for part in np.array_split(idx, self.n_splits):
            yield np.setdiff1d(idx, part), np.sort(part)


def get_model():
    model = Sequential(
        [
            Input((X.shape[1],)),
            Dense(64, activation="swish"),
            BatchNormalization(),
            Dropout(0.1),
            Dense(32, activation="swish"),
            Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(3e-3), loss="mse", metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])
    return model


oof = np.zeros(len(X))
preds = np.zeros(len(X_test))
scores = []
for fold, (tr, va) in enumerate(KFold(N_FOLDS, shuffle=True, random_state=SEED).split(X)):
    print("#" * 10, "FOLD", fold + 1)
    K.clear_session()
    model = get_model()
    ckpt = keras.callbacks.ModelCheckpoint(f"fold{fold}.keras", monitor="val_rmse", mode="min", save_best_only=True)
    es = keras.callbacks.EarlyStopping(monitor="val_rmse", mode="min", patience=2)
    history = model.fit(
        X[tr], y[tr], validation_data=(X[va], y[va]), epochs=5, batch_size=BATCH, callbacks=[ckpt, es], verbose=0
    )
    model = load_model(f"fold{fold}.keras")
    oof[va] = model.predict(X[va], verbose=0)[:, 0]
    preds += model.predict(X_test, verbose=0)[:, 0] / N_FOLDS
    scores.append(np.sqrt(np.mean((oof[va] - y[va]) ** 2)))
    print("fold", fold + 1, "rmse", scores[-1], "best of history", min(history.history["val_rmse"]))
    del model
    gc.collect()

print("CV: %.8f +- %.8f" % (np.mean(scores), np.std(scores)))
print("OOF rmse:", np.sqrt(np.mean((oof - y) ** 2)))
np.savetxt("submission.csv", np.c_[np.arange(len(preds)), preds], delimiter=",", header="id,target", comments="")
print(preds[:5])
