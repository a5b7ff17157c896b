# Data augmentation with Keras preprocessing layers in the input pipeline (option 2 of the guide)
import tensorflow as tf
from tensorflow.keras import layers

IMG_SIZE = 32
batch_size = 20
AUTOTUNE = tf.data.AUTOTUNE

list_ds = tf.data.Dataset.list_files("flowers/*/*.jpg", shuffle=False)
image_count = len(list_ds)
list_ds = list_ds.shuffle(image_count, reshuffle_each_iteration=False)
class_names = tf.constant(["daisy", "rose", "tulip"])


def process_path(file_path):
    parts = tf.strings.split(file_path, "/")
    label = tf.argmax(parts[-2] == class_names)
    img = tf.io.decode_jpeg(tf.io.read_file(file_path), channels=3)
    return img, label


val_size = int(image_count * 0.2)
train_ds = list_ds.skip(val_size).map(process_path, num_parallel_calls=AUTOTUNE)
val_ds = list_ds.take(val_size).map(process_path, num_parallel_calls=AUTOTUNE)

resize_and_rescale = tf.keras.Sequential(
    [layers.Resizing(IMG_SIZE, IMG_SIZE), layers.Rescaling(1.0 / 255)]
)
data_augmentation = tf.keras.Sequential(
    [
        layers.RandomFlip("horizontal_and_vertical"),
        layers.RandomRotation(0.2),
        layers.RandomContrast(0.2),
    ]
)


def prepare(ds, shuffle=False, augment=False):
    # Resize and rescale all datasets.
    ds = ds.map(lambda x, y: (resize_and_rescale(x), y), num_parallel_calls=AUTOTUNE)
    if shuffle:
        ds = ds.shuffle(50)
    ds = ds.batch(batch_size)
    # Use data augmentation only on the training set.
    if augment:
        ds = ds.map(lambda x, y: (data_augmentation(x, training=True), y), num_parallel_calls=AUTOTUNE)
    # Use buffered prefetching on all datasets.
    return ds.prefetch(buffer_size=AUTOTUNE)


train_ds = prepare(train_ds, shuffle=True, augment=True)
val_ds = prepare(val_ds)

model = tf.keras.Sequential(
    [
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(32, activation="relu"),
        layers.Dense(3),
    ]
)
model.compile(
    optimizer="adam",
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(train_ds, validation_data=val_ds, epochs=3)
loss, acc = model.evaluate(val_ds)
print("Accuracy", acc)
print("Loss", loss, history.history["loss"])
