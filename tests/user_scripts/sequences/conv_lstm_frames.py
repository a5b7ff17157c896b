"""
Title: Next-Frame Video Prediction with Convolutional LSTMs
(moving squares made here, after the keras.io example)
"""

import keras
import numpy as np
from keras import layers


def generate_movies(n_samples=100, n_frames=7, size=12):
    movies = np.zeros((n_samples, n_frames, size, size, 1), dtype="float32")
    for i in range(n_samples):
        for _ in range(np.random.randint(1, 3)):
            xstart, ystart = np.random.randint(2, size - 2, 2)
            dx, dy = np.random.randint(0, 3, 2) - 1
            w = np.random.randint(1, 3)
            for t in range(n_frames):
                xs, ys = (xstart + dx * t) % size, (ystart + dy * t) % size
                movies[i, t, max(0, xs - w) : xs + w, max(0, ys - w) : ys + w, 0] = 1
    movies += np.random.randint(0, 2, movies.shape) * 0.1
    return np.clip(movies, 0, 1)


dataset = generate_movies()
indexes = np.arange(dataset.shape[0])
np.random.shuffle(indexes)
train_index = indexes[: int(0.9 * dataset.shape[0])]
val_index = indexes[int(0.9 * dataset.shape[0]) :]
train_dataset = dataset[train_index]
val_dataset = dataset[val_index]


# `x` is frames 0 to n - 1, and `y` is frames 1 to n.
def create_shifted_frames(data):
    x = data[:, 0 : data.shape[1] - 1, :, :]
    y = data[:, 1 : data.shape[1], :, :]
    return x, y


x_train, y_train = create_shifted_frames(train_dataset)
x_val, y_val = create_shifted_frames(val_dataset)
print("Training Dataset Shapes: " + str(x_train.shape) + ", " + str(y_train.shape))

inp = layers.Input(shape=(None, *x_train.shape[2:]))
x = layers.ConvLSTM2D(filters=6, kernel_size=(3, 3), padding="same", return_sequences=True, activation="relu")(inp)
x = layers.BatchNormalization()(x)
x = layers.Conv3D(filters=1, kernel_size=(3, 3, 3), activation="sigmoid", padding="same")(x)
model = keras.models.Model(inp, x)
model.compile(loss=keras.losses.binary_crossentropy, optimizer=keras.optimizers.Adam(0.02))

early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=10)
reduce_lr = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1)
h = model.fit(
    x_train,
    y_train,
    batch_size=10,
    epochs=3,
    validation_data=(x_val, y_val),
    callbacks=[early_stopping, reduce_lr],
)
print(h.history)

example = val_dataset[np.random.choice(range(len(val_dataset)), size=1)[0]]
frames = example[:4, ...]
for _ in range(3):
    new_prediction = model.predict(np.expand_dims(frames, axis=0), verbose=0)
    predicted_frame = np.expand_dims(np.squeeze(new_prediction, axis=0)[-1, ...], axis=0)
    frames = np.concatenate((frames, predicted_frame), axis=0)
print("error of the predicted frames:", np.abs(frames[4:7] - example[4:7]).mean(axis=(1, 2, 3)))
