# Small ResNet with crop/flip augmentation and a cosine schedule
import keras
import numpy as np
import tensorflow as tf
from keras import layers, regularizers

keras.utils.set_random_seed(42)

EPOCHS = 3
BATCH = 64
N = 640
rng = np.random.RandomState(0)


def make_images(n):
    """Blobs and stripes in colours, four classes."""
    y = rng.randint(0, 4, n)
    xx, yy = np.meshgrid(np.linspace(0, 1, 20), np.linspace(0, 1, 20))
    imgs = []
    for k in y:
        f = rng.uniform(2, 4)
        phase = rng.uniform(0, 6.28)
        base = [np.sin(6.28 * f * xx + phase), np.sin(6.28 * f * yy + phase),
                np.sin(6.28 * f * (xx + yy) / 1.4 + phase), np.cos(6.28 * f * np.hypot(xx - 0.5, yy - 0.5) + phase)][k]
        imgs.append(base[..., None] * rng.uniform(0.2, 1, 3) + rng.normal(0, 0.9, (20, 20, 3)))
    return np.array(imgs, "float32"), y.astype("int32")


x_train, y_train = make_images(N)
x_val, y_val = make_images(160)
mean, std = x_train.mean(axis=(0, 1, 2)), x_train.std(axis=(0, 1, 2))


def preprocess(x, y):
    return (x - mean) / std, y


def augment(x, y):
    x = tf.pad(x, [[2, 2], [2, 2], [0, 0]], mode="REFLECT")
    x = tf.image.random_crop(x, (20, 20, 3))
    x = tf.image.random_flip_left_right(x)
    return x, y


train = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train))
    .map(preprocess)
    .cache()
    .shuffle(N)
    .map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    .batch(BATCH, drop_remainder=True)
    .prefetch(tf.data.AUTOTUNE)
)
val = tf.data.Dataset.from_tensor_slices((x_val, y_val)).map(preprocess).batch(BATCH)


def block(x, filters, stride=1):
    shortcut = x
    kw = dict(padding="same", use_bias=False, kernel_initializer="he_normal",
              kernel_regularizer=regularizers.l2(1e-4))
    x = layers.Conv2D(filters, 3, strides=stride, **kw)(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    x = layers.Activation("relu")(x)
    x = layers.Conv2D(filters, 3, **kw)(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    if stride != 1 or shortcut.shape[-1] != filters:
        shortcut = layers.Conv2D(filters, 1, strides=stride, **kw)(shortcut)
    return layers.Activation("relu")(layers.add([x, shortcut]))


inp = keras.Input((20, 20, 3))
x = layers.Conv2D(12, 3, padding="same", use_bias=False)(inp)
x = block(x, 12)
x = block(x, 24, 2)
x = layers.GlobalAveragePooling2D()(x)
model = keras.Model(inp, layers.Dense(4)(x), name="resnet")

schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=EPOCHS * (N // BATCH))
model.compile(
    keras.optimizers.SGD(schedule, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["sparse_categorical_accuracy"],
)
cb = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True, verbose=1)
h = model.fit(train, epochs=EPOCHS, validation_data=val, callbacks=[cb], verbose=2)

best = keras.models.load_model("best.keras")
loss, acc = best.evaluate(val)
print(f"best model: loss {loss!r} accuracy {acc!r}")
print("train loss by epoch:", h.history["loss"])
