"""Convolutional autoencoder for image denoising: trained on clean images, then on noisy ones."""

import keras
import numpy as np
from keras import layers


def preprocess(array):
    """Normalizes the supplied array and reshapes it."""
    array = array.astype("float32") / 255.0
    return np.reshape(array, (len(array), 16, 16, 1))


def noise(array):
    """Adds random noise to each image in the supplied array."""
    noise_factor = 0.4
    noisy_array = array + noise_factor * np.random.normal(loc=0.0, scale=1.0, size=array.shape)
    return np.clip(noisy_array, 0.0, 1.0)


def write_pgm(name, array1, array2):
    """Ten random images from each array, one above the other."""
    indices = np.random.randint(len(array1), size=10)
    sheet = np.concatenate([np.concatenate(list(a[indices, :, :, 0]), axis=1) for a in (array1, array2)])
    with open(name, "wb") as f:
        f.write(b"P5 %d %d 255\n" % (sheet.shape[1], sheet.shape[0]))
        f.write((sheet * 255).astype("uint8").tobytes())


with np.load("digits.npz") as d:
    train_data, test_data = preprocess(d["x_train"]), preprocess(d["x_test"])
noisy_train_data = noise(train_data)
noisy_test_data = noise(test_data)
write_pgm("data.pgm", train_data, noisy_train_data)

input = layers.Input(shape=(16, 16, 1))
# Encoder
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(input)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(x)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
# Decoder
x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.models.Model(input, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")

h1 = autoencoder.fit(
    x=train_data,
    y=train_data,
    epochs=2,
    batch_size=64,
    shuffle=True,
    validation_data=(test_data, test_data),
)
predictions = autoencoder.predict(test_data)
write_pgm("clean.pgm", test_data, predictions)

h2 = autoencoder.fit(
    x=noisy_train_data,
    y=train_data,
    epochs=2,
    batch_size=64,
    shuffle=True,
    validation_data=(noisy_test_data, test_data),
)
predictions = autoencoder.predict(noisy_test_data)
write_pgm("denoised.pgm", noisy_test_data, predictions)
print(h1.history["val_loss"] + h2.history["val_loss"])
print("mse before", np.mean((noisy_test_data - test_data) ** 2), "after", np.mean((predictions - test_data) ** 2))
