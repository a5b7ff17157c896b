"""A keras Sequence that shuffles its indexes at the end of each epoch (Stanford blog post style)."""

import numpy as np
from tensorflow import keras
from tensorflow.keras.layers import Activation, BatchNormalization, Conv2D, Dense, Flatten
from tensorflow.keras.models import Sequential


class DataGenerator(keras.utils.Sequence):
    "Generates data for Keras"

    def __init__(self, list_IDs, images, labels, batch_size=32, dim=(16, 16), n_channels=1,
                 n_classes=10, shuffle=True):
        "Initialization"
        super().__init__()
        self.dim = dim
        self.batch_size = batch_size
        self.images = images
        self.labels = labels
        self.list_IDs = list_IDs
        self.n_channels = n_channels
        self.n_classes = n_classes
        self.shuffle = shuffle
        self.on_epoch_end()

    def __len__(self):
        "Denotes the number of batches per epoch"
        return int(np.floor(len(self.list_IDs) / self.batch_size))

    def __getitem__(self, index):
        "Generate one batch of data"
        indexes = self.indexes[index * self.batch_size : (index + 1) * self.batch_size]
        list_IDs_temp = [self.list_IDs[k] for k in indexes]
        X, y = self.__data_generation(list_IDs_temp)
        return X, y

    def on_epoch_end(self):
        "Updates indexes after each epoch"
        self.indexes = np.arange(len(self.list_IDs))
        if self.shuffle == True:
            np.random.shuffle(self.indexes)

    def __data_generation(self, list_IDs_temp):
        "Generates data containing batch_size samples"
        X = np.empty((self.batch_size, *self.dim, self.n_channels))
        y = np.empty((self.batch_size), dtype=int)
        for i, ID in enumerate(list_IDs_temp):
            X[i,] = self.images[ID][..., None] / 255.0
            y[i] = self.labels[ID]
        return X, keras.utils.to_categorical(y, num_classes=self.n_classes)


params = {"dim": (16, 16), "batch_size": 32, "n_classes": 10, "n_channels": 1, "shuffle": True}

archive = np.load("digits.npz")
images, labels = archive["x_train"], archive["y_train"]
ids = np.random.permutation(len(images))
partition = {"train": list(ids[:640]), "validation": list(ids[640:])}

training_generator = DataGenerator(partition["train"], images, labels, **params)
validation_generator = DataGenerator(partition["validation"], images, labels, **params)

model = Sequential()
model.add(Conv2D(16, (3, 3), input_shape=(16, 16, 1)))
model.add(BatchNormalization())
model.add(Activation("relu"))
model.add(Conv2D(16, (3, 3), strides=(2, 2)))
model.add(BatchNormalization())
model.add(Activation("relu"))
model.add(Flatten())
model.add(Dense(10, activation="softmax"))
model.compile(optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"])

model.fit(training_generator, validation_data=validation_generator, epochs=3)

scores = model.evaluate(validation_generator, verbose=0)
print("%s: %.6f%%" % (model.metrics_names[1], scores[1] * 100), scores)
