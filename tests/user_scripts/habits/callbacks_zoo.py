# all the callbacks I know on one small model
import datetime
import os

import numpy as np
import tensorflow as tf
from tensorflow.keras import callbacks, layers, models

tf.random.set_seed(12)

npz = np.load("digits.npz")
X_train, X_valid = npz["x_train"][:640] / 255.0, npz["x_train"][640:] / 255.0
y_train, y_valid = npz["y_train"][:640], npz["y_train"][640:]
X_test, y_test = npz["x_test"] / 255.0, npz["y_test"]

model = models.Sequential(
    [
        layers.Flatten(input_shape=[16, 16]),
        layers.Dense(60, activation="selu", kernel_initializer="lecun_normal"),
        layers.AlphaDropout(0.1),
        layers.Dense(30, activation="selu", kernel_initializer="lecun_normal"),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile("nadam", "sparse_categorical_crossentropy", metrics=["accuracy"])


class ConfusionMatrixCallback(callbacks.Callback):
    """Predicts the validation images after each epoch and prints the worst class."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def on_epoch_end(self, epoch, logs=None):
        pred = np.argmax(self.model.predict(self.x, verbose=0), axis=1)
        cm = tf.math.confusion_matrix(self.y, pred, num_classes=10).numpy()
        recall = np.diag(cm) / np.maximum(cm.sum(1), 1)
        print(f" worst class {recall.argmin()} recall {recall.min()!r}")


class BatchLosses(callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses = []
        print("params:", self.params)

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


class PrintValTrainRatioCallback(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        ratio = logs["val_loss"] / logs["loss"]
        print(f"Epoch={epoch}, val/train={ratio}")


def warmup(epoch, lr):
    return lr * 2 if epoch < 2 else lr * tf.math.exp(-0.1).numpy()


run_dir = os.path.join("logs", datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
batch_losses = BatchLosses()
history = model.fit(
    X_train,
    y_train,
    epochs=5,
    validation_data=(X_valid, y_valid),
    verbose=2,
    callbacks=[
        callbacks.TensorBoard(run_dir, histogram_freq=1, update_freq="epoch"),
        callbacks.ModelCheckpoint("my_keras_model.keras", monitor="val_accuracy", save_best_only=True),
        callbacks.EarlyStopping(patience=2, restore_best_weights=True, monitor="val_loss"),
        callbacks.LearningRateScheduler(warmup),
        callbacks.ReduceLROnPlateau(factor=0.3, patience=1, min_lr=1e-4),
        callbacks.TerminateOnNaN(),
        callbacks.CSVLogger("epochs.csv", separator=";"),
        callbacks.LambdaCallback(on_train_end=lambda logs: print("finished", sorted(logs))),
        ConfusionMatrixCallback(X_valid, y_valid),
        PrintValTrainRatioCallback(),
        batch_losses,
    ],
)
print("learning rates", history.history["learning_rate"])
print("first and last batch losses", batch_losses.losses[:2], batch_losses.losses[-2:], len(batch_losses.losses))
print("test now", model.evaluate(X_test, y_test, verbose=0))
print("test best checkpoint", tf.keras.models.load_model("my_keras_model.keras").evaluate(X_test, y_test, verbose=0))
