"""MNIST-like training as an absl application."""

from absl import app, flags, logging
import numpy as np
import tensorflow as tf

FLAGS = flags.FLAGS
flags.DEFINE_integer("train_epochs", 3, "Number of epochs to train.")
flags.DEFINE_integer("batch_size", 32, "Batch size.")
flags.DEFINE_float("base_learning_rate", 0.05, "Learning rate at the start.")
flags.DEFINE_float("label_smoothing", 0.0, "Smoothing of the targets.")
flags.DEFINE_string("model_dir", "model_dir", "Where checkpoints and summaries go.")
flags.DEFINE_string("data", "digits.npz", "Archive with the arrays.")
flags.DEFINE_bool("use_augmentation", True, "Whether to move the images a little.")


def input_fn(is_training):
    with np.load(FLAGS.data) as f:
        split = "train" if is_training else "test"
        images, labels = f["x_" + split], f["y_" + split]
    ds = tf.data.Dataset.from_tensor_slices((images, labels))
    if is_training:
        ds = ds.shuffle(400).repeat()

    def prep(image, label):
        image = tf.cast(image[..., tf.newaxis], tf.float32) / 127.5 - 1.0
        if is_training and FLAGS.use_augmentation:
            shift = tf.random.uniform([2], -1, 2, dtype=tf.int32)
            image = tf.roll(image, shift, axis=[0, 1])
        return image, tf.one_hot(label, 10)

    ds = ds.map(prep)
    ds = ds.batch(FLAGS.batch_size, drop_remainder=is_training)
    return ds.prefetch(tf.data.AUTOTUNE), len(images)


def build_model():
    image = tf.keras.layers.Input(shape=(16, 16, 1), name="image")
    y = tf.keras.layers.Conv2D(16, 5, padding="same", activation="relu")(image)
    y = tf.keras.layers.MaxPooling2D((2, 2), (2, 2), padding="same")(y)
    y = tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu")(y)
    y = tf.keras.layers.MaxPooling2D((2, 2), (2, 2), padding="same")(y)
    y = tf.keras.layers.Flatten()(y)
    y = tf.keras.layers.Dense(32, activation="relu")(y)
    y = tf.keras.layers.Dropout(0.4)(y)
    probs = tf.keras.layers.Dense(10, activation="softmax")(y)
    return tf.keras.Model(image, probs, name="mnist")


def run(flags_obj):
    train_ds, num_train = input_fn(True)
    eval_ds, num_eval = input_fn(False)
    steps = num_train // flags_obj.batch_size
    lr = tf.keras.optimizers.schedules.PiecewiseConstantDecay(
        [steps, 2 * steps],
        [flags_obj.base_learning_rate, flags_obj.base_learning_rate / 2, flags_obj.base_learning_rate / 10],
    )
    model = build_model()
    model.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate=lr, momentum=0.9),
        loss=tf.keras.losses.CategoricalCrossentropy(label_smoothing=flags_obj.label_smoothing),
        metrics=["categorical_accuracy"],
    )
    callbacks = [
        tf.keras.callbacks.ModelCheckpoint(flags_obj.model_dir + "/model.ckpt-{epoch:04d}.weights.h5", save_weights_only=True)
    ]
    history = model.fit(
        train_ds,
        epochs=flags_obj.train_epochs,
        steps_per_epoch=steps,
        callbacks=callbacks,
        validation_steps=num_eval // flags_obj.batch_size,
        validation_data=eval_ds,
        validation_freq=1,
        verbose=2,
    )
    stats = {"loss": history.history["loss"][-1], "training_accuracy_top_1": history.history["categorical_accuracy"][-1]}
    eval_output = model.evaluate(eval_ds, verbose=0)
    stats["eval_loss"], stats["accuracy_top_1"] = eval_output
    return stats


def main(argv):
    if len(argv) > 1:
        raise app.UsageError("Too many command-line arguments.")
    stats = run(FLAGS)
    logging.info("Run stats:\n%s", stats)
    print(stats)


if __name__ == "__main__":
    app.run(main)
