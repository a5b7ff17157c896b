# cats vs dogs, own batch generator because the images do not fit in memory
import os
import random

import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Conv2D, Dense, Dropout, GlobalAveragePooling2D, MaxPooling2D
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import RMSprop

TRAIN_DIR = "train/"
SIZE = 40
BATCH = 8

files = [TRAIN_DIR + f for f in os.listdir(TRAIN_DIR)]
random.shuffle(files)

n_val = int(0.2 * len(files))
val_files = files[:n_val]
train_files = files[n_val:]
print("train", len(train_files), "val", len(val_files))


def load(path):
    img = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    img = tf.image.resize(img, (SIZE, SIZE)).numpy() / 255.0
    return img


def label(path):
    return 1 if "dog" in os.path.basename(path) else 0


def batch_generator(paths, batch_size, augment=False):
    while True:
        batch = np.random.choice(paths, size=batch_size)
        X, Y = [], []
        for p in batch:
            img = load(p)
            if augment and random.random() > 0.5:
                img = img[:, ::-1]
            if augment:
                img = img * np.random.uniform(0.8, 1.2)
            X.append(img)
            Y.append(label(p))
        yield np.array(X, dtype="float32"), np.array(Y)


def val_generator():
    while True:
        for i in range(0, len(val_files), BATCH):
            part = val_files[i : i + BATCH]
            yield np.array([load(p) for p in part]), np.array([label(p) for p in part])


model = Sequential()
model.add(Conv2D(16, (3, 3), activation="relu", input_shape=(SIZE, SIZE, 3)))
model.add(MaxPooling2D((2, 2)))
model.add(Conv2D(32, (3, 3), activation="relu"))
model.add(MaxPooling2D((2, 2)))
model.add(GlobalAveragePooling2D())
model.add(Dropout(0.3))
model.add(Dense(1, activation="sigmoid"))
model.compile(loss="binary_crossentropy", optimizer=RMSprop(learning_rate=2e-3), metrics=["acc"])

history = model.fit(
    batch_generator(train_files, BATCH, augment=True),
    steps_per_epoch=len(train_files) // BATCH,
    epochs=3,
    validation_data=val_generator(),
    validation_steps=len(val_files) // BATCH,
    verbose=2,
)
model.save_weights("cats_dogs.weights.h5")
print(history.history["loss"], history.history["acc"])
print(history.history["val_loss"], history.history["val_acc"])

probs = model.predict(np.array([load(p) for p in val_files]), verbose=0)[:, 0]
for p, f in list(zip(probs, val_files))[:5]:
    print(f, "dog" if p > 0.5 else "cat", p)
