"""Speed flags: mixed precision policy, steps_per_execution, jit_compile on one of the models."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, mixed_precision

tf.config.optimizer.set_jit(False)
policy = mixed_precision.Policy("mixed_bfloat16")
mixed_precision.set_global_policy(policy)
print("Compute dtype: %s" % policy.compute_dtype)
print("Variable dtype: %s" % policy.variable_dtype)

with np.load("digits.npz") as f:
    x_train = f["x_train"].reshape(800, 256).astype("float32") / 255
    x_test = f["x_test"].reshape(200, 256).astype("float32") / 255
    y_train, y_test = f["y_train"], f["y_test"]

inputs = keras.Input(shape=(256,), name="digits")
dense1 = layers.Dense(64, activation="relu", name="dense_1")
x = dense1(inputs)
print(dense1.dtype_policy)
print("x.dtype: %s" % x.dtype)
x = layers.Dense(64, activation="relu", name="dense_2")(x)
x = layers.Dropout(0.1)(x)
x = layers.Dense(10, name="dense_logits")(x)
# softmax in float32
outputs = layers.Activation("softmax", dtype="float32", name="predictions")(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.RMSprop(0.003),
    metrics=["accuracy"],
    steps_per_execution=4,
)
initial_weights = model.get_weights()
history = model.fit(x_train, y_train, batch_size=40, epochs=3, validation_split=0.2)
test_scores = model.evaluate(x_test, y_test, verbose=2)
print("Test loss:", test_scores[0])
print("Test accuracy:", test_scores[1])

mixed_precision.set_global_policy("float32")
model2 = keras.Sequential(
    [keras.Input((256,)), layers.Dense(32, "relu"), layers.Dense(10)]
)
model2.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.SGD(0.1, clipvalue=0.5),
    jit_compile=True,
)
h = model2.fit(x_train, y_train, batch_size=40, epochs=2, verbose=0)
print("jit:", h.history["loss"], model2.evaluate(x_test, y_test, verbose=0))
