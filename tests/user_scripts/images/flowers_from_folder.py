# Image classification of flowers, follows the TensorFlow "Load and classify images" tutorial
import pathlib

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.keras.models import Sequential

data_dir = pathlib.Path("flowers").with_suffix("")
image_count = len(list(data_dir.glob("*/*.jpg")))
print(image_count)

batch_size = 16
img_height = 36
img_width = 36

train_ds = tf.keras.utils.image_dataset_from_directory(
    data_dir,
    validation_split=0.2,
    subset="training",
    seed=123,
    image_size=(img_height, img_width),
    batch_size=batch_size,
)
val_ds = tf.keras.utils.image_dataset_from_directory(
    data_dir,
    validation_split=0.2,
    subset="validation",
    seed=123,
    image_size=(img_height, img_width),
    batch_size=batch_size,
)
class_names = train_ds.class_names
print(class_names)

for image_batch, labels_batch in train_ds:
    print(image_batch.shape)
    print(labels_batch.shape)
    break

AUTOTUNE = tf.data.AUTOTUNE
train_ds = train_ds.cache().shuffle(1000).prefetch(buffer_size=AUTOTUNE)
val_ds = val_ds.cache().prefetch(buffer_size=AUTOTUNE)

num_classes = len(class_names)
data_augmentation = keras.Sequential(
    [
        layers.Input(shape=(img_height, img_width, 3)),
        layers.RandomFlip("horizontal"),
        layers.RandomRotation(0.1),
        layers.RandomZoom(0.1),
    ]
)
model = Sequential(
    [
        data_augmentation,
        layers.Rescaling(1.0 / 255),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Dropout(0.2),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(num_classes, name="outputs"),
    ]
)
model.compile(
    optimizer="adam",
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.summary()

epochs = 3
history = model.fit(train_ds, validation_data=val_ds, epochs=epochs)

acc = history.history["accuracy"]
val_acc = history.history["val_accuracy"]
print("acc", acc)
print("val_acc", val_acc)
print("loss", history.history["loss"])
print("val_loss", history.history["val_loss"])

img = next(iter(data_dir.glob("rose/*.jpg")))
img_array = tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(str(img))), (img_height, img_width))
predictions = model.predict(tf.expand_dims(img_array, 0))
score = tf.nn.softmax(predictions[0])
print(f"This image most likely belongs to {class_names[int(tf.argmax(score))]}")
