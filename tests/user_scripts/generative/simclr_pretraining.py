"""
Title: Semi-supervised image classification using contrastive pretraining with SimCLR
(small, after the keras.io example)
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

npz = np.load("digits.npz")
unlabeled = npz["x_train"][200:, :, :, None]
labeled = (npz["x_train"][:200, :, :, None], npz["y_train"][:200])
test_dataset = tf.data.Dataset.from_tensor_slices((npz["x_test"][..., None], npz["y_test"])).batch(50)

unlabeled_ds = tf.data.Dataset.from_tensor_slices((unlabeled, -np.ones(600, "int64"))).shuffle(600).batch(60)
labeled_ds = tf.data.Dataset.from_tensor_slices(labeled).shuffle(200).batch(20)
# Labeled and unlabeled samples are zipped together
train_dataset = tf.data.Dataset.zip((unlabeled_ds, labeled_ds)).prefetch(tf.data.AUTOTUNE)

WIDTH = 24
TEMPERATURE = 0.1


def get_augmenter(zoom, brightness):
    return keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.RandomTranslation(zoom / 2, zoom / 2),
            layers.RandomZoom((-zoom, 0.0), (-zoom, 0.0)),
            layers.RandomBrightness(brightness, value_range=(0, 1)),
        ]
    )


def get_encoder():
    return keras.Sequential(
        [
            layers.Conv2D(WIDTH, kernel_size=3, strides=2, activation="relu"),
            layers.Conv2D(WIDTH, kernel_size=3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(WIDTH, activation="relu"),
        ],
        name="encoder",
    )


class ContrastiveModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.contrastive_augmenter = get_augmenter(0.25, 0.3)
        self.classification_augmenter = get_augmenter(0.1, 0.1)
        self.encoder = get_encoder()
        self.projection_head = keras.Sequential([layers.Dense(WIDTH, activation="relu"), layers.Dense(WIDTH)])
        self.linear_probe = keras.Sequential([layers.Dense(10)], name="linear_probe")

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrastive_loss_tracker = keras.metrics.Mean(name="c_loss")
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_loss_tracker = keras.metrics.Mean(name="p_loss")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [self.contrastive_loss_tracker, self.contrastive_accuracy, self.probe_loss_tracker, self.probe_accuracy]

    def contrastive_loss(self, projections_1, projections_2):
        # InfoNCE loss: every other example of the batch is a negative
        projections_1 = ops.normalize(projections_1, axis=1)
        projections_2 = ops.normalize(projections_2, axis=1)
        similarities = ops.matmul(projections_1, ops.transpose(projections_2)) / TEMPERATURE
        contrastive_labels = ops.arange(ops.shape(projections_1)[0])
        self.contrastive_accuracy.update_state(contrastive_labels, similarities)
        self.contrastive_accuracy.update_state(contrastive_labels, ops.transpose(similarities))
        loss_1_2 = keras.losses.sparse_categorical_crossentropy(contrastive_labels, similarities, from_logits=True)
        loss_2_1 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, ops.transpose(similarities), from_logits=True
        )
        return (loss_1_2 + loss_2_1) / 2

    def train_step(self, data):
        (unlabeled_images, _), (labeled_images, labels) = data
        images = ops.concatenate((unlabeled_images, labeled_images), axis=0)
        augmented_1 = self.contrastive_augmenter(images, training=True)
        augmented_2 = self.contrastive_augmenter(images, training=True)
        with tf.GradientTape() as tape:
            projections_1 = self.projection_head(self.encoder(augmented_1, training=True), training=True)
            projections_2 = self.projection_head(self.encoder(augmented_2, training=True), training=True)
            contrastive_loss = self.contrastive_loss(projections_1, projections_2)
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        gradients = tape.gradient(contrastive_loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, weights))
        self.contrastive_loss_tracker.update_state(contrastive_loss)

        preprocessed_images = self.classification_augmenter(labeled_images, training=True)
        with tf.GradientTape() as tape:
            features = self.encoder(preprocessed_images, training=False)
            class_logits = self.linear_probe(features, training=True)
            probe_loss = self.probe_loss(labels, class_logits)
        gradients = tape.gradient(probe_loss, self.linear_probe.trainable_weights)
        self.probe_optimizer.apply_gradients(zip(gradients, self.linear_probe.trainable_weights))
        self.probe_loss_tracker.update_state(probe_loss)
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        labeled_images, labels = data
        preprocessed_images = self.classification_augmenter(labeled_images, training=False)
        features = self.encoder(preprocessed_images, training=False)
        class_logits = self.linear_probe(features, training=False)
        self.probe_loss_tracker.update_state(self.probe_loss(labels, class_logits))
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics[2:]}


pretraining_model = ContrastiveModel()
pretraining_model.compile(
    contrastive_optimizer=keras.optimizers.Adam(0.003), probe_optimizer=keras.optimizers.Adam(0.01)
)
pretraining_history = pretraining_model.fit(train_dataset, epochs=3, validation_data=test_dataset, verbose=2)
print("Maximal validation accuracy: {:.4f}%".format(max(pretraining_history.history["val_p_acc"]) * 100))
for k, v in pretraining_history.history.items():
    print(k, v)
