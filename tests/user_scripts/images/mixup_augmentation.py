"""
Title: MixUp augmentation for image classification
(two shuffled copies of the training data, zipped; after the keras.io example)
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

npz = np.load("digits.npz")
x_train = npz["x_train"].astype("float32") / 255.0
x_train = np.reshape(x_train, (-1, 16, 16, 1))
y_train = tf.one_hot(npz["y_train"], 10)
x_test = npz["x_test"].astype("float32") / 255.0
x_test = np.reshape(x_test, (-1, 16, 16, 1))
y_test = tf.one_hot(npz["y_test"], 10)

AUTO = tf.data.AUTOTUNE
BATCH_SIZE = 64
EPOCHS = 3

# Put aside a few samples to create our validation set
val_samples = 100
x_val, y_val = x_train[:val_samples], y_train[:val_samples]
new_x_train, new_y_train = x_train[val_samples:], y_train[val_samples:]

train_ds_one = (
    tf.data.Dataset.from_tensor_slices((new_x_train, new_y_train))
    .shuffle(BATCH_SIZE * 100)
    .batch(BATCH_SIZE)
)
train_ds_two = (
    tf.data.Dataset.from_tensor_slices((new_x_train, new_y_train))
    .shuffle(BATCH_SIZE * 100)
    .batch(BATCH_SIZE)
)
train_ds = tf.data.Dataset.zip((train_ds_one, train_ds_two))
val_ds = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(BATCH_SIZE)
test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(BATCH_SIZE)


def sample_beta_distribution(size, concentration_0=0.2, concentration_1=0.2):
    gamma_1_sample = tf.random.gamma(shape=[size], alpha=concentration_1)
    gamma_2_sample = tf.random.gamma(shape=[size], alpha=concentration_0)
    return gamma_1_sample / (gamma_1_sample + gamma_2_sample)


def mix_up(ds_one, ds_two, alpha=0.2):
    images_one, labels_one = ds_one
    images_two, labels_two = ds_two
    batch_size = tf.shape(images_one)[0]
    # Sample lambda and reshape it to do the mixup
    l = sample_beta_distribution(batch_size, alpha, alpha)
    x_l = tf.reshape(l, (batch_size, 1, 1, 1))
    y_l = tf.reshape(l, (batch_size, 1))
    images = images_one * x_l + images_two * (1 - x_l)
    labels = labels_one * y_l + labels_two * (1 - y_l)
    return (images, labels)


train_ds_mu = train_ds.map(
    lambda ds_one, ds_two: mix_up(ds_one, ds_two, alpha=0.2), num_parallel_calls=AUTO
)


def get_training_model():
    return keras.Sequential(
        [
            layers.Input(shape=(16, 16, 1)),
            layers.Conv2D(16, (5, 5), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Dropout(0.2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


initial_model = get_training_model()
initial_model.save_weights("initial_weights.weights.h5")

model = get_training_model()
model.load_weights("initial_weights.weights.h5")
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(train_ds_mu, validation_data=val_ds, epochs=EPOCHS)
_, test_acc = model.evaluate(test_ds)
print(f"Test accuracy with mixup: {test_acc * 100}%")

model = get_training_model()
model.load_weights("initial_weights.weights.h5")
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
# Notice that we are NOT using the mixed up dataset here
hist = model.fit(train_ds_one, validation_data=val_ds, epochs=EPOCHS)
test_loss, test_acc = model.evaluate(test_ds)
print(f"Test accuracy without mixup: {test_acc * 100}%")
print(hist.history["loss"], test_loss)
