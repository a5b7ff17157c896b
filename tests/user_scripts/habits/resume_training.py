"""Train, save, load and continue with initial_epoch; the log file is appended."""

import os

import keras
import numpy as np

x = np.load("ecg.npz")["beats"][..., None]
y = np.load("ecg.npz")["labels"].astype("float32")
n = 480
checkpoint_path = "training_1/cp-{epoch:04d}.keras"


def create_model():
    model = keras.Sequential(
        [
            keras.Input((96, 1)),
            keras.layers.Conv1D(12, 9, strides=2, activation="relu"),
            keras.layers.MaxPooling1D(3),
            keras.layers.Conv1D(12, 5, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(2e-3, amsgrad=True), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
    return model


def callbacks():
    return [
        keras.callbacks.ModelCheckpoint(filepath=checkpoint_path, verbose=1),
        keras.callbacks.CSVLogger("training.log", append=True),
        keras.callbacks.TerminateOnNaN(),
    ]


model = create_model()
print("untrained:", model.evaluate(x[n:], y[n:], verbose=0))
model.fit(x[:n], y[:n], epochs=2, batch_size=32, validation_data=(x[n:], y[n:]), callbacks=callbacks(), verbose=2)

# "the machine was restarted"
del model
keras.backend.clear_session()

ckpts = sorted(os.listdir(os.path.dirname(checkpoint_path)))
latest = os.path.join("training_1", ckpts[-1])
print("continue from", latest)
model = keras.models.load_model(latest)
print("restored:", model.evaluate(x[n:], y[n:], verbose=0))
history = model.fit(
    x[:n],
    y[:n],
    epochs=4,
    initial_epoch=2,
    batch_size=32,
    validation_data=(x[n:], y[n:]),
    callbacks=callbacks(),
    verbose=2,
)
print("epochs", history.epoch, "steps of the optimizer", int(model.optimizer.iterations))
print(history.history["loss"], history.history["val_auc"])

# and weights only, into a fresh model
model.save_weights("final.weights.h5")
fresh = create_model()
fresh.load_weights("final.weights.h5")
print("fresh:", fresh.evaluate(x[n:], y[n:], verbose=0))
print(open("training.log").read())
