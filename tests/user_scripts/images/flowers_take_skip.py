"""Flowers with a train / validation / test split by take() and skip()."""

import tensorflow as tf

IMG_SIZE = 32
BATCH_SIZE = 16

data = tf.keras.utils.image_dataset_from_directory(
    "flowers", image_size=(IMG_SIZE, IMG_SIZE), batch_size=BATCH_SIZE, label_mode="categorical"
)
# scale the images
data = data.map(lambda x, y: (x / 255, y))

train_size = int(len(data) * 0.7)
val_size = int(len(data) * 0.2)
test_size = len(data) - train_size - val_size
print(len(data), train_size, val_size, test_size)

train = data.take(train_size)
val = data.skip(train_size).take(val_size)
test = data.skip(train_size + val_size).take(test_size)


def augment(image, label):
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, 0.2)
    image = tf.image.random_contrast(image, 0.8, 1.2)
    return tf.clip_by_value(image, 0.0, 1.0), label


train = train.map(augment, num_parallel_calls=tf.data.AUTOTUNE)

model = tf.keras.models.Sequential()
model.add(tf.keras.layers.Conv2D(16, (3, 3), 1, activation="relu", input_shape=(IMG_SIZE, IMG_SIZE, 3)))
model.add(tf.keras.layers.MaxPooling2D())
model.add(tf.keras.layers.Conv2D(16, (3, 3), 1, activation="relu"))
model.add(tf.keras.layers.MaxPooling2D())
model.add(tf.keras.layers.Flatten())
model.add(tf.keras.layers.Dense(32, activation="relu"))
model.add(tf.keras.layers.Dense(3, activation="softmax"))
model.compile("adam", loss=tf.losses.CategoricalCrossentropy(), metrics=["accuracy"])

hist = model.fit(train, epochs=3, validation_data=val)
print(hist.history)

pre = tf.keras.metrics.Precision()
re = tf.keras.metrics.Recall()
acc = tf.keras.metrics.CategoricalAccuracy()
for batch in test.as_numpy_iterator():
    X, y = batch
    yhat = model.predict(X)
    pre.update_state(y, yhat)
    re.update_state(y, yhat)
    acc.update_state(y, yhat)
print("Precision:", pre.result().numpy(), "Recall:", re.result().numpy(), "Acc:", acc.result().numpy())

model.save("imageclassifier.h5")
