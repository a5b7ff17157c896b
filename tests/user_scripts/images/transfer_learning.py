"""Transfer learning: pretrain on digits 0-4, freeze, train a new head on 5-9, then fine-tune."""

import numpy as np
import tensorflow as tf

data = np.load("digits.npz")
x, y = data["x_train"][..., None] / 255.0, data["y_train"]
xt, yt = data["x_test"][..., None] / 255.0, data["y_test"]

x_lo, y_lo = x[y < 5], y[y < 5]
x_hi, y_hi = x[y >= 5], y[y >= 5] - 5
xt_hi, yt_hi = xt[yt >= 5], yt[yt >= 5] - 5

base_model = tf.keras.Sequential(
    [
        tf.keras.layers.InputLayer(shape=(16, 16, 1)),
        tf.keras.layers.Conv2D(16, 3, activation="relu"),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.GlobalMaxPooling2D(),
    ],
    name="base",
)
pre = tf.keras.Sequential([base_model, tf.keras.layers.Dense(5, activation="softmax")])
pre.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
pre.fit(x_lo, y_lo, epochs=3, batch_size=32, verbose=0)
pre.save_weights("pretrained.weights.h5")

base_model.trainable = False

inputs = tf.keras.Input(shape=(16, 16, 1))
z = tf.keras.layers.RandomTranslation(0.05, 0.05)(inputs)
z = base_model(z, training=False)
z = tf.keras.layers.Dropout(0.2)(z)
outputs = tf.keras.layers.Dense(5)(z)
model = tf.keras.Model(inputs, outputs)

base_learning_rate = 0.003
model.compile(
    optimizer=tf.keras.optimizers.Adam(learning_rate=base_learning_rate),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
print("trainable:", len(model.trainable_variables))
loss0, accuracy0 = model.evaluate(xt_hi, yt_hi)
print(f"initial loss: {loss0:.2f}")

initial_epochs = 2
history = model.fit(x_hi, y_hi, epochs=initial_epochs, validation_data=(xt_hi, yt_hi))

# Fine tuning: unfreeze the top of the base
base_model.trainable = True
fine_tune_at = 3
for layer in base_model.layers[:fine_tune_at]:
    layer.trainable = False

model.compile(
    optimizer=tf.keras.optimizers.RMSprop(learning_rate=base_learning_rate / 10),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
print("trainable:", len(model.trainable_variables))
fine_tune_epochs = 2
history_fine = model.fit(
    x_hi,
    y_hi,
    epochs=initial_epochs + fine_tune_epochs,
    initial_epoch=len(history.epoch),
    validation_data=(xt_hi, yt_hi),
)

acc = history.history["accuracy"] + history_fine.history["accuracy"]
val_loss = history.history["val_loss"] + history_fine.history["val_loss"]
print(acc)
print(val_loss)
