# transfer learning in two phases: train the head, then fine-tune everything
# (input pipeline straight from the TensorFlow guide: shuffle, repeat, batch, prefetch)
import numpy as np
import tensorflow as tf
from tensorflow import keras

tf.keras.utils.set_random_seed(11)
AUTOTUNE = tf.data.AUTOTUNE
BATCH_SIZE = 16

rng = np.random.default_rng(3)
x = rng.normal(size=(330, 12)).astype("float32")
y = (x[:, :3].sum(axis=1) > 0).astype("int32")
x_train, y_train, x_val, y_val = x[:250], y[:250], x[250:], y[250:]


def augment(features, label):
    return features * 1.1 - 0.05, label


train_ds = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train))
    .map(augment, num_parallel_calls=AUTOTUNE)
    .shuffle(250, seed=5)
    .repeat()
    .batch(BATCH_SIZE)
    .prefetch(1)
)
val_ds = (
    tf.data.Dataset.from_tensor_slices((x_val, y_val))
    .shuffle(80, seed=6)
    .repeat()
    .batch(BATCH_SIZE)
    .prefetch(1)
)
steps_per_epoch = len(x_train) // BATCH_SIZE
validation_steps = 3

base = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(24, activation="relu"), keras.layers.Dense(16)],
    name="base",
)
base.trainable = False
model = keras.Sequential([base, keras.layers.ReLU(), keras.layers.Dense(2, activation="softmax")])


def compile_and_fit(lr, epochs):
    model.compile(
        optimizer=keras.optimizers.Adam(lr),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=4)
    return model.fit(
        train_ds,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        validation_data=val_ds,
        validation_steps=validation_steps,
        callbacks=[stop],
        verbose=2,
    )


head = compile_and_fit(1e-2, 2)
print("head", head.history["loss"], head.history["val_loss"])
base.trainable = True
tuned = compile_and_fit(1e-3, 12)
print("tuned", tuned.history["loss"], tuned.history["val_loss"], tuned.history["val_accuracy"])
print(model.evaluate(x_val, y_val, verbose=0))
