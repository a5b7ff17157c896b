"""Activity recognition: random windows cut by a generator, repeat + steps_per_epoch."""

import numpy as np
import tensorflow as tf

CLASSES = ["walk", "run", "rest"]
WINDOW = 32
BATCH = 24
STEPS = 12

# one long recording per class
t = np.arange(1500)
recordings = [
    np.stack([np.sin(t / 3 + p) + np.random.normal(0, 0.8, len(t)) for p in range(3)], 1),
    np.stack([1.4 * np.sin(t / 1.7 + p) + np.random.normal(0, 1.0, len(t)) for p in range(3)], 1),
    np.stack([np.random.normal(0, 0.9, len(t)) for p in range(3)], 1),
]


def window_generator(start, stop):
    while True:
        label = np.random.randint(3)
        i = np.random.randint(start, stop - WINDOW)
        window = recordings[label][i : i + WINDOW]
        # random rotation of the sensor about one axis
        a = np.random.uniform(-0.5, 0.5)
        rot = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
        yield (window @ rot).astype(np.float32), label


def make(start, stop):
    return (
        tf.data.Dataset.from_generator(
            window_generator,
            args=(start, stop),
            output_types=(tf.float32, tf.int32),
            output_shapes=((WINDOW, 3), ()),
        )
        .batch(BATCH)
        .prefetch(2)
    )


train_data = make(0, 1100)
valid_data = make(1100, 1500)

model = tf.keras.Sequential(
    [
        tf.keras.Input((WINDOW, 3)),
        tf.keras.layers.Conv1D(16, 5, activation="relu"),
        tf.keras.layers.MaxPool1D(2),
        tf.keras.layers.Conv1D(16, 5, activation="relu"),
        tf.keras.layers.GlobalAvgPool1D(),
        tf.keras.layers.Dense(len(CLASSES)),
    ]
)
model.compile(
    optimizer=tf.keras.optimizers.Adam(3e-3),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    train_data,
    epochs=3,
    steps_per_epoch=STEPS,
    validation_data=valid_data,
    validation_steps=5,
    callbacks=[tf.keras.callbacks.CSVLogger("log.csv")],
)
print(open("log.csv").read())
print("final:", model.evaluate(valid_data, steps=4, verbose=0))
