"""Imbalanced classification: credit card fraud detection (class weights and early stopping)."""

import keras
import numpy as np

rng = np.random.default_rng(1337)
n = 1500
features = rng.normal(size=(n, 12))
logit = features[:, 0] * 1.5 - features[:, 3] + features[:, 5] * features[:, 6] - 4.0
targets = (rng.uniform(size=n) < 1 / (1 + np.exp(-logit))).astype("uint8")[:, None]

num_val_samples = int(n * 0.2)
train_features, train_targets = features[:-num_val_samples], targets[:-num_val_samples]
val_features, val_targets = features[-num_val_samples:], targets[-num_val_samples:]
print("Number of training samples:", len(train_features))

counts = np.bincount(train_targets[:, 0])
print(
    "Number of positive samples in training data: {} ({:.2f}% of total)".format(
        counts[1], 100 * float(counts[1]) / len(train_targets)
    )
)
weight_for_0 = 1.0 / counts[0]
weight_for_1 = 1.0 / counts[1]

mean = np.mean(train_features, axis=0)
train_features -= mean
val_features -= mean
std = np.std(train_features, axis=0)
train_features /= std
val_features /= std

model = keras.Sequential(
    [
        keras.Input(shape=train_features.shape[1:]),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
metrics = [
    keras.metrics.FalseNegatives(name="fn"),
    keras.metrics.FalsePositives(name="fp"),
    keras.metrics.TrueNegatives(name="tn"),
    keras.metrics.TruePositives(name="tp"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
    keras.metrics.AUC(name="auc"),
    keras.metrics.AUC(name="prc", curve="PR"),
]
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=metrics)
callbacks = [
    keras.callbacks.EarlyStopping(
        monitor="val_prc", mode="max", patience=2, restore_best_weights=True, verbose=1
    )
]
class_weight = {0: weight_for_0, 1: weight_for_1}
history = model.fit(
    train_features,
    train_targets,
    batch_size=64,
    epochs=8,
    verbose=2,
    callbacks=callbacks,
    validation_data=(val_features, val_targets),
    class_weight=class_weight,
)
print("stopped after", len(history.epoch), "epochs; losses", history.history["loss"])
baseline_results = model.evaluate(val_features, val_targets, batch_size=64, verbose=0, return_dict=True)
for name, value in baseline_results.items():
    print(name, ": ", value)
p = model.predict(val_features, verbose=0)[:, 0]
cm = np.array([[np.sum((val_targets[:, 0] == i) & ((p > 0.5) == j)) for j in (0, 1)] for i in (0, 1)])
print(cm)
