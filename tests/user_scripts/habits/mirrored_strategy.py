# Distributed training with Keras: MirroredStrategy
import os

import tensorflow as tf

print(tf.__version__)
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)

strategy = tf.distribute.MirroredStrategy()
print("Number of devices: {}".format(strategy.num_replicas_in_sync))

BUFFER_SIZE = 1000
BATCH_SIZE_PER_REPLICA = 32
BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync
NUM_CLASSES = 5


def scale(image, label):
    return tf.cast(image, tf.float32) / 255, label


# data on the fly
def make_dataset(n, seed):
    g = tf.random.Generator.from_seed(seed)
    labels = g.uniform([n], 0, NUM_CLASSES, dtype=tf.int64)
    ramp = tf.cast(tf.range(14), tf.float32)[None, :, None, None] * tf.cast(labels, tf.float32)[:, None, None, None]
    images = tf.clip_by_value(60 + 4.0 * ramp + g.normal([n, 14, 14, 1], stddev=150.0), 0, 255)
    return tf.data.Dataset.from_tensor_slices((tf.cast(images, tf.uint8), labels))


train_dataset = make_dataset(800, 1).map(scale).cache().shuffle(BUFFER_SIZE).batch(BATCH_SIZE)
eval_dataset = make_dataset(200, 2).map(scale).batch(BATCH_SIZE)

options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
train_dataset = train_dataset.with_options(options)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(16, 3, activation="relu", input_shape=(14, 14, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(NUM_CLASSES),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        metrics=["accuracy"],
    )


def decay(epoch):
    if epoch < 2:
        return 3e-3
    elif epoch >= 2 and epoch < 4:
        return 1e-3
    else:
        return 1e-4


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("\nLearning rate for epoch {} is {}".format(epoch + 1, self.model.optimizer.learning_rate.numpy()))


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir="./logs"),
    tf.keras.callbacks.ModelCheckpoint(filepath=os.path.join("ckpts", "ckpt_{epoch}.weights.h5"), save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
EPOCHS = 4
model.fit(train_dataset, epochs=EPOCHS, callbacks=callbacks)

model.load_weights(os.path.join("ckpts", f"ckpt_{EPOCHS}.weights.h5"))
eval_loss, eval_acc = model.evaluate(eval_dataset)
print("Eval loss: {}, Eval accuracy: {}".format(eval_loss, eval_acc))
