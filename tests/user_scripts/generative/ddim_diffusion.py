"""
Title: Denoising Diffusion Implicit Models
(very small, with an EMA network, after the keras.io example)
"""

import math

import keras
import numpy as np
from keras import layers, ops
import tensorflow as tf

image_size = 16
ema = 0.95
min_signal_rate, max_signal_rate = 0.02, 0.95


@keras.saving.register_keras_serializable()
def sinusoidal_embedding(x):
    frequencies = ops.exp(ops.linspace(ops.log(1.0), ops.log(100.0), 4))
    angular_speeds = ops.cast(2.0 * math.pi * frequencies, "float32")
    return ops.concatenate([ops.sin(angular_speeds * x), ops.cos(angular_speeds * x)], axis=3)


def get_network():
    noisy_images = keras.Input(shape=(image_size, image_size, 1))
    noise_variances = keras.Input(shape=(1, 1, 1))
    e = layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, 8))(noise_variances)
    e = layers.UpSampling2D(size=image_size, interpolation="nearest")(e)
    x = layers.Conv2D(8, kernel_size=1)(noisy_images)
    x = layers.Concatenate()([x, e])
    skip = layers.Conv2D(16, 3, padding="same", activation="swish")(x)
    x = layers.AveragePooling2D(2)(skip)
    x = layers.BatchNormalization(center=False, scale=False)(x)
    x = layers.Conv2D(24, 3, padding="same", activation="swish")(x)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Concatenate()([x, skip])
    x = layers.Conv2D(16, 3, padding="same", activation="swish")(x)
    x = layers.Conv2D(1, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model([noisy_images, noise_variances], x)


class DiffusionModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization(axis=-1)
        self.network = get_network()
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def diffusion_schedule(self, diffusion_times):
        start_angle, end_angle = math.acos(max_signal_rate), math.acos(min_signal_rate)
        angles = start_angle + diffusion_times * (end_angle - start_angle)
        return ops.sin(angles), ops.cos(angles)

    def denoise(self, noisy_images, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        pred_noises = network([noisy_images, noise_rates**2], training=training)
        return pred_noises, (noisy_images - noise_rates * pred_noises) / signal_rates

    def train_step(self, images):
        images = self.normalizer(images, training=True)
        batch = ops.shape(images)[0]
        noises = keras.random.normal(shape=(batch, image_size, image_size, 1))
        diffusion_times = keras.random.uniform(shape=(batch, 1, 1, 1), minval=0.0, maxval=1.0)
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        noisy_images = signal_rates * images + noise_rates * noises
        with tf.GradientTape() as tape:
            pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=True)
            noise_loss = self.loss(noises, pred_noises)  # used for training
            image_loss = self.loss(images, pred_images)  # only used as metric
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        # track the exponential moving averages of weights
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights):
            ema_weight.assign(ema * ema_weight + (1 - ema) * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, images):
        images = self.normalizer(images, training=False)
        batch = ops.shape(images)[0]
        noises = keras.random.normal(shape=(batch, image_size, image_size, 1))
        diffusion_times = keras.random.uniform(shape=(batch, 1, 1, 1), minval=0.0, maxval=1.0)
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        noisy_images = signal_rates * images + noise_rates * noises
        pred_noises, pred_images = self.denoise(noisy_images, noise_rates, signal_rates, training=False)
        self.image_loss_tracker.update_state(self.loss(images, pred_images))
        self.noise_loss_tracker.update_state(self.loss(noises, pred_noises))
        return {m.name: m.result() for m in self.metrics}

    def generate(self, num_images, steps):
        noisy = keras.random.normal((num_images, image_size, image_size, 1))
        for step in range(steps):
            times = ops.ones((num_images, 1, 1, 1)) - step / steps
            noise_rates, signal_rates = self.diffusion_schedule(times)
            noises, images = self.denoise(noisy, noise_rates, signal_rates, training=False)
            next_noise, next_signal = self.diffusion_schedule(times - 1 / steps)
            noisy = next_signal * images + next_noise * noises
        return images


npz = np.load("digits.npz")
train = tf.data.Dataset.from_tensor_slices(npz["x_train"][..., None].astype("float32") / 255)
train = train.cache().shuffle(800).batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
val = tf.data.Dataset.from_tensor_slices(npz["x_test"][..., None].astype("float32") / 255).batch(32)

model = DiffusionModel()
model.compile(optimizer=keras.optimizers.AdamW(learning_rate=5e-3, weight_decay=1e-4), loss=keras.losses.mean_absolute_error)
model.normalizer.adapt(train)
history = model.fit(train, epochs=3, validation_data=val, verbose=2)
print(history.history)
images = model.generate(4, 3)
print("generated:", images.shape)
