"""Penguins from a CSV file with tf.data.experimental.CsvDataset."""

import tensorflow as tf

dataset = tf.data.experimental.CsvDataset(
    "penguins.csv",
    record_defaults=[tf.int32, tf.float32, tf.float32, tf.float32, tf.float32],
    header=True,
)


def pack(label, *features):
    return tf.stack(features), label


dataset = dataset.map(pack).cache()

N = 330
dataset = dataset.shuffle(N, seed=1, reshuffle_each_iteration=False)
train = dataset.take(250).shuffle(250).batch(25)
test = dataset.skip(250).batch(40)

norm = tf.keras.layers.Normalization()
norm.adapt(train.map(lambda x, y: x))

model = tf.keras.Sequential(
    [
        norm,
        tf.keras.layers.Dense(10, activation=tf.nn.relu),
        tf.keras.layers.Dense(10, activation=tf.nn.relu),
        tf.keras.layers.Dense(3),
    ]
)
model.compile(
    optimizer=tf.keras.optimizers.SGD(learning_rate=0.03),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
)


class PrintEvery(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch % 2 == 0:
            print("Epoch {:03d}: Loss: {:.6f}, Accuracy: {:.4%}".format(
                epoch, logs["loss"], logs["sparse_categorical_accuracy"]))


model.fit(train, epochs=9, verbose=0, callbacks=[PrintEvery()])
print("Test set:", model.evaluate(test, verbose=0))

predict_dataset = tf.convert_to_tensor([
    [39.1, 18.7, 181, 3750],
    [46.5, 14.8, 217, 5200],
    [48.8, 18.4, 195, 3733],
])
predictions = model(predict_dataset, training=False)
for i, logits in enumerate(predictions):
    class_idx = tf.math.argmax(logits).numpy()
    p = tf.nn.softmax(logits)[class_idx]
    print("Example {} prediction: {} ({:4.3f}%)".format(i, class_idx, 100 * p))
