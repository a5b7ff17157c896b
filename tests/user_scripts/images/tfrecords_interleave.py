"""Training from sharded TFRecord files."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import keras
import tensorflow as tf
from keras import layers

AUTOTUNE = tf.data.AUTOTUNE
BATCH_SIZE = 32
IMAGE_SIZE = 24

feature_description = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/label": tf.io.FixedLenFeature([], tf.int64),
    "image/size": tf.io.FixedLenFeature([2], tf.float32),
}


def parse_example(serialized):
    example = tf.io.parse_single_example(serialized, feature_description)
    image = tf.io.decode_png(example["image/encoded"], channels=1)
    image = tf.image.convert_image_dtype(image, tf.float32)
    image = tf.ensure_shape(image, [IMAGE_SIZE, IMAGE_SIZE, 1])
    return image, tf.one_hot(example["image/label"], 4)


def augment(image, label):
    image = tf.image.resize_with_crop_or_pad(image, IMAGE_SIZE + 4, IMAGE_SIZE + 4)
    image = tf.image.random_crop(image, [IMAGE_SIZE, IMAGE_SIZE, 1])
    image = tf.image.random_flip_left_right(image)
    return image, label


def get_dataset(pattern, training):
    files = tf.data.Dataset.list_files(pattern, shuffle=training)
    ds = files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=4,
        num_parallel_calls=AUTOTUNE,
        deterministic=not training,
    )
    ds = ds.map(parse_example, num_parallel_calls=AUTOTUNE)
    if training:
        ds = ds.shuffle(200)
        ds = ds.map(augment, num_parallel_calls=AUTOTUNE)
    return ds.batch(BATCH_SIZE).prefetch(AUTOTUNE)


train_dataset = get_dataset("tfrecords/train-*.tfrecord", training=True)
val_dataset = get_dataset("tfrecords/val-*.tfrecord", training=False)

inputs = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 1))
x = inputs
for filters in (16, 32):
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.MaxPooling2D()(x)
x = layers.GlobalAveragePooling2D()(x)
outputs = layers.Dense(4, activation="softmax")(x)
model = keras.Model(inputs, outputs)

model.compile(
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(k=2, name="top2")],
)
history = model.fit(train_dataset, epochs=3, validation_data=val_dataset)
for name in ("loss", "val_loss"):
    print(name, history.history[name])
print("test loss", model.evaluate(val_dataset, return_dict=True)["loss"])
