"""Customer model with named inputs and named outputs, several losses and metrics (functional API)."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(812)

num_tags = 12
num_words = 200
num_departments = 4
num_samples = 640

title_data = np.random.randint(1, num_words, size=(num_samples, 8))
body_data = np.random.randint(1, num_words, size=(num_samples, 20))
tags_data = np.random.randint(2, size=(num_samples, num_tags)).astype("float32")
# some structure so that there is something to learn
score = (title_data.mean(1) - 100) / 40 + tags_data[:, 0] * 2 - 1
priority_targets = (score + np.random.normal(0, 0.5, num_samples) > 0).astype("float32")[:, None]
dept = (tags_data[:, :2] @ [1, 2]).astype(int)
flip = np.random.rand(num_samples) < 0.1
dept[flip] = np.random.randint(0, num_departments, flip.sum())
dept_targets = keras.utils.to_categorical(dept, num_departments)

title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")

title_features = layers.Embedding(num_words, 16)(title_input)
body_features = layers.Embedding(num_words, 16)(body_input)
title_features = layers.LSTM(16)(title_features)
body_features = layers.GRU(8)(body_features)
x = layers.concatenate([title_features, body_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, activation="softmax", name="department")(x)

model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(5e-3, clipnorm=1.0),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={
        "priority": [keras.metrics.BinaryAccuracy(threshold=0.0, name="acc"), keras.metrics.AUC(from_logits=True)],
        "department": ["accuracy"],
    },
)
split = 512
inputs = {"title": title_data, "body": body_data, "tags": tags_data}
targets = {"priority": priority_targets, "department": dept_targets}
history = model.fit(
    {k: v[:split] for k, v in inputs.items()},
    {k: v[:split] for k, v in targets.items()},
    validation_data=({k: v[split:] for k, v in inputs.items()}, {k: v[split:] for k, v in targets.items()}),
    epochs=3,
    batch_size=32,
)
for k in sorted(history.history):
    print(k, history.history[k])
out = model.predict({k: v[split:] for k, v in inputs.items()}, batch_size=50)
print({k: v.shape for k, v in out.items()}, float(np.abs(out["priority"]).mean()))
