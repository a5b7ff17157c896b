"""Adversarial networks, autoencoders and diffusion."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.harness.partitioned_models.common import (
    ROWS,
    Made,
    Makers,
    Networks,
    Subclassed,
    crossentropy,
    features,
    images,
    labels,
    layers,
    normal,
    ops,
)


def _generator(inputs: int = 4) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(4 * 4 * 3),
            layers.Reshape((4, 4, 3)),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Conv2DTranspose(2, 4, strides=2, padding="same", activation="tanh"),
        ]
    )


def _discriminator(channels: int = 2, units: int = 1) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((8, 8, channels)),
            layers.Conv2D(4, 4, strides=2),
            layers.LeakyReLU(),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(units),
        ]
    )


class Adversaries(Networks):
    """Two networks, two optimizers, two applications (Radford et al., "DCGAN", 2016)."""

    def __init__(self) -> None:
        super().__init__(discriminator=_discriminator(), generator=_generator())
        self.loss_of_generator = keras.metrics.Mean(name="g")

    def train_step(self, data: Any) -> dict[str, Any]:
        """Judges real and made images in one batch."""
        real = data[0]
        rows = tf.shape(real)[0]
        discriminator, generator = self.networks["discriminator"], self.networks["generator"]
        judged = keras.losses.BinaryCrossentropy(from_logits=True)
        made = generator(self.noise(rows), training=True)
        truth = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], 0)
        with tf.GradientTape() as tape:
            loss = judged(truth, discriminator(tf.concat([made, real], 0), training=True))
        self.apply("discriminator", tape, loss)
        with tf.GradientTape() as tape:
            made = generator(self.noise(rows), training=True)
            loss = judged(tf.zeros((rows, 1)), discriminator(made, training=True))
        self.apply("generator", tape, loss)
        self.loss_of_generator.update_state(loss)
        return {"g": self.loss_of_generator.result()}


class Critics(Networks):
    """Several steps of the critic, with a gradient penalty (Gulrajani et al., "WGAN-GP", 2017)."""

    def __init__(self) -> None:
        super().__init__(critic=_discriminator(), generator=_generator())

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes a step as in keras.io's example."""
        real = data[0]
        rows = tf.shape(real)[0]
        critic, generator = self.networks["critic"], self.networks["generator"]
        for _ in range(2):
            with tf.GradientTape() as tape:
                made = generator(self.noise(rows), training=True)
                cost = tf.reduce_mean(critic(made, training=True))
                cost -= tf.reduce_mean(critic(real, training=True))
                loss = cost + 10.0 * self._penalty(real, made)
            self.apply("critic", tape, loss)
        with tf.GradientTape() as tape:
            other = -tf.reduce_mean(critic(generator(self.noise(rows), training=True)))
        self.apply("generator", tape, other)
        return {"d_loss": loss, "g_loss": other}

    def _penalty(self, real: Any, made: Any) -> Any:
        rows = tf.shape(real)[0]
        alpha = keras.random.uniform((rows, 1, 1, 1), seed=self.seeds, dtype=real.dtype)
        between = real + alpha * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            said = self.networks["critic"](between, training=True)
        gradients = tape.gradient(said, [between])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradients), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)


class Conditional(Networks):
    """Adds the class as further channels of images (Mirza & Osindero, 2014)."""

    def __init__(self) -> None:
        super().__init__(discriminator=_discriminator(2 + 3), generator=_generator(4 + 3))

    def train_step(self, data: Any) -> dict[str, Any]:
        """Uses misleading labels for the generator, and noisy labels for the discriminator."""
        real, y = data
        rows = tf.shape(real)[0]
        classes = tf.one_hot(y, 3, dtype=real.dtype)
        planes = tf.repeat(tf.repeat(classes[:, None, None, :], 8, axis=1), 8, axis=2)
        discriminator, generator = self.networks["discriminator"], self.networks["generator"]
        judged = keras.losses.BinaryCrossentropy(from_logits=True)
        noise = tf.concat([self.noise(rows), classes], axis=1)
        made = tf.concat([generator(noise, training=True), planes], -1)
        both = tf.concat([made, tf.concat([real, planes], -1)], axis=0)
        truth = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], 0)
        truth += 0.05 * keras.random.uniform(tf.shape(truth), seed=self.seeds, dtype="float32")
        with tf.GradientTape() as tape:
            loss = judged(truth, discriminator(both, training=True))
        self.apply("discriminator", tape, loss)
        noise = tf.concat([self.noise(rows), classes], axis=1)
        with tf.GradientTape() as tape:
            made = tf.concat([generator(noise, training=True), planes], -1)
            other = judged(tf.zeros((rows, 1)), discriminator(made, training=True))
        self.apply("generator", tape, other)
        return {"d": loss, "g": other}


def _translator() -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.GroupNormalization(groups=-1, epsilon=1e-3),
            layers.Conv2D(2, 3, padding="same", activation="tanh"),
        ]
    )


class Cycles(Networks):
    """Four networks, four optimizers, one tape (Zhu et al., "CycleGAN", 2017)."""

    def __init__(self) -> None:
        names = ("to_zebra", "to_horse")
        critics = {f"of_{n}": _discriminator() for n in names}
        super().__init__(**{n: _translator() for n in names}, **critics)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Uses cycle, identity and adversarial losses."""
        horse, zebra = data
        net = self.networks
        judged, absolute = keras.losses.MeanSquaredError(), keras.losses.MeanAbsoluteError()
        with tf.GradientTape(persistent=True) as tape:
            made_zebra, made_horse = net["to_zebra"](horse), net["to_horse"](zebra)
            cycled = absolute(horse, net["to_horse"](made_zebra)) * 10.0
            cycled += absolute(zebra, net["to_zebra"](made_horse)) * 10.0
            same = absolute(horse, net["to_horse"](horse)) + absolute(zebra, net["to_zebra"](zebra))
            losses = {}
            for name, real, made in (
                ("to_zebra", zebra, made_zebra),
                ("to_horse", horse, made_horse),
            ):
                critic = net[f"of_{name}"]
                on_made = critic(made, training=True)
                on_real = critic(real, training=True)
                losses[name] = judged(tf.ones_like(on_made), on_made) + cycled + 5.0 * same
                wrong = judged(tf.zeros_like(on_made), on_made)
                losses[f"of_{name}"] = 0.5 * (judged(tf.ones_like(on_real), on_real) + wrong)
        for name, loss in losses.items():
            self.apply(name, tape, loss)
        return losses


class Codebook(layers.Layer):
    """A codebook that learns by a moving average (van den Oord et al., "VQ-VAE", 2017)."""

    def build(self, shape: Any) -> None:
        """Makes five entries."""
        self.entries, self.sums = (
            self.add_weight(shape=(5, shape[-1]), initializer="uniform", trainable=False)
            for _ in range(2)
        )
        self.counts = self.add_weight(shape=(5,), initializer="ones", trainable=False)

    def call(self, x: Any) -> Any:
        """Returns the nearest entry, with the gradient of the input."""
        distance = tf.reduce_sum((x[:, None] - self.entries) ** 2, -1)
        chosen = tf.one_hot(tf.argmin(distance, 1), 5, dtype=x.dtype)
        entry = tf.matmul(chosen, self.entries)
        self.counts.assign(0.9 * self.counts + 0.1 * tf.reduce_sum(chosen, 0))
        self.sums.assign(0.9 * self.sums + 0.1 * tf.matmul(chosen, x, transpose_a=True))
        self.entries.assign(self.sums / (self.counts[:, None] + 1e-3))
        self.add_loss(0.25 * tf.reduce_mean((tf.stop_gradient(entry) - x) ** 2))
        return x + tf.stop_gradient(entry - x)


class Counter(layers.Layer):
    """Counts the examples that it has seen."""

    def build(self, shape: Any) -> None:
        """Makes the counter."""
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        """Returns a little less of the input with each example seen."""
        self.seen.assign_add(tf.cast(tf.shape(x)[0], x.dtype))
        return x / (1.0 + 0.01 * self.seen)


class LearntCodebook(layers.Layer):
    """A codebook with gradients, as in keras.io's example; rows and places are flattened."""

    def build(self, shape: Any) -> None:
        """Makes four entries, one in each column."""
        self.entries = self.add_weight(shape=(shape[-1], 4), initializer="uniform")

    def call(self, x: Any) -> Any:
        """Returns the nearest entry. It computes distances by a matrix product."""
        shape = ops.shape(x)
        flat = ops.reshape(x, [-1, 3])
        distances = (
            ops.sum(flat**2, axis=1, keepdims=True)
            + ops.sum(self.entries**2, axis=0)
            - 2 * ops.matmul(flat, self.entries)
        )
        chosen = ops.one_hot(ops.argmin(distances, axis=1), 4)
        chosen = ops.cast(chosen, flat.dtype)
        found = ops.reshape(ops.matmul(chosen, ops.transpose(self.entries)), shape)
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(found) - x) ** 2))
        self.add_loss(ops.mean((found - ops.stop_gradient(x)) ** 2))
        share = ops.mean(chosen, axis=0)
        self.add_loss(-0.01 * ops.sum(share * ops.log(share + 1e-6)))
        return x + ops.stop_gradient(found - x)


def quantised_images() -> Made:
    """Returns an autoencoder of images, with a loss of the entries' use over the batch."""
    inputs = keras.Input((8, 8, 2))
    hidden = layers.Conv2D(3, 3, 2, padding="same", activation="relu")(inputs)
    hidden = LearntCodebook()(hidden)
    outputs = layers.Conv2DTranspose(2, 3, 2, padding="same")(hidden)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    return model, (images()[0], images()[0])


class Diffusion(keras.Model):
    """Denoises images; a slow copy of the network follows (Song et al., "DDIM", 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.slow = (
            keras.Sequential(
                [
                    keras.Input((8, 8, 3)),
                    layers.Conv2D(4, 3, padding="same", activation="swish"),
                    layers.BatchNormalization(),
                    layers.Conv2D(2, 1, kernel_initializer="zeros"),
                ]
            )
            for _ in range(2)
        )
        self.slow.set_weights(self.network.get_weights())
        self.seeds = keras.random.SeedGenerator(7)
        self.normalizer = layers.Normalization(axis=-1, mean=[0.1, 0.2], variance=[1.0, 2.0])
        self.normalizer.build((None, 8, 8, 2))
        self.noise_loss = keras.metrics.Mean(name="n_loss")

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes a step as in keras.io's example."""
        x = self.normalizer(data[0])
        rows = ops.shape(x)[0]
        noise = keras.random.normal(ops.shape(x), seed=self.seeds, dtype=x.dtype)
        times = keras.random.uniform((rows, 1, 1, 1), seed=self.seeds, dtype=x.dtype)
        angles = 0.1 + times * 1.4
        signal, noisy = ops.cos(angles), ops.sin(angles)
        mixed = signal * x + noisy * noise
        with tf.GradientTape() as tape:
            plane = ops.broadcast_to(noisy**2, (rows, 8, 8, 1))
            said = self.network(ops.concatenate([mixed, plane], -1), training=True)
            loss = ops.mean(ops.abs(noise - said))
            image_loss = ops.mean(ops.abs(x - (mixed - noisy * said) / signal))
        variables = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.noise_loss.update_state(loss)
        for weight, slow in zip(self.network.weights, self.slow.weights, strict=True):
            slow.assign(0.9 * slow + 0.1 * weight)
        return {"n_loss": self.noise_loss.result(), "i_loss": image_loss}


def diffusion() -> Made:
    """Returns a diffusion model with weight decay."""
    model = Diffusion()
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=1e-4))
    model.optimizer.build(model.network.trainable_variables)
    return model, images()


class Patches(Subclassed):
    """Predicts the content of masked patches, which are drawn anew (He et al., "MAE", 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((4, 8)), layers.Dense(5, "gelu")])
        self.decoder = keras.Sequential([keras.Input((16, 5)), layers.Dense(8)])
        self.token = self.add_weight(shape=(1, 1, 5), initializer="glorot_uniform")
        self.places = layers.Embedding(16, 5)
        self.seeds = keras.random.SeedGenerator(7)

    def loss_of(self, x: Any, y: Any) -> Any:
        """Shows four of sixteen patches to the encoder."""
        rows = tf.shape(x)[0]
        patches = tf.reshape(tf.image.extract_patches(x, *_PATCHES), (rows, 16, 8))
        order = tf.argsort(keras.random.uniform((rows, 16), seed=self.seeds), axis=-1)
        masked, seen = order[:, :12], order[:, 12:]
        encoded = self.encoder(tf.gather(patches, seen, axis=1, batch_dims=1), training=True)
        hidden = tf.repeat(tf.repeat(self.token.value, rows, 0), 12, 1) + self.places(masked)
        said = self.decoder(tf.concat([encoded, hidden], 1), training=True)
        said = said[:, 4:]
        truth = tf.gather(patches, masked, axis=1, batch_dims=1)
        return tf.reduce_mean((truth - said) ** 2)


_PATCHES = [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"


def patches() -> Made:
    """Returns a masked autoencoder with all variables built."""
    model = Patches()
    model.compile("adam")
    model.places(tf.constant([[0]]))
    model.optimizer.build(model.trainable_variables)
    return model, images()


class Variational(keras.Model):
    """An autoencoder with three trackers (Kingma & Welling, "VAE", 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input((6,)), layers.Dense(5, "relu"), layers.Dense(4)]
        )
        self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(6)])
        self.seeds = keras.random.SeedGenerator(7)
        self.trackers = [keras.metrics.Mean(name=n) for n in ("total", "again", "kl")]

    def train_step(self, data: Any) -> dict[str, Any]:
        """Sums over features and takes means over rows; free bits bound small values from below."""
        x = data[0]
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(x), 2, axis=1)
            noise = keras.random.normal(tf.shape(mean), seed=self.seeds, dtype=x.dtype)
            z = mean + tf.exp(0.5 * log_variance) * noise
            again = tf.reduce_mean(tf.reduce_sum((self.decoder(z) - x) ** 2, axis=1))
            kl = -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))
            kl = tf.reduce_sum(tf.maximum(tf.reduce_mean(kl, axis=0), 0.05))
            total = again + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for tracker, value in zip(self.trackers, (total, again, kl), strict=True):
            tracker.update_state(value)
        return {t.name: t.result() for t in self.trackers}


def variational() -> Made:
    """Returns the autoencoder and a batch without labels."""
    model = Variational()
    model.compile(keras.optimizers.Adam(0.01))
    model.optimizer.build(model.trainable_variables)
    return model, features()[:1]


class Flow(Subclassed):
    """Coupling layers and log determinants, with norms of the batch (Dinh et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = [
            keras.Sequential([keras.Input((6,)), layers.Dense(5, "relu"), layers.Dense(12)])
            for _ in range(2)
        ]
        self.norm = layers.BatchNormalization()
        self.mix = self.add_weight(shape=(6, 6), initializer="orthogonal")

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the negative log likelihood of a standard normal distribution."""
        mask = tf.constant([1, 0, 1, 0, 1, 0], x.dtype)
        log_det = tf.linalg.slogdet(self.mix.value)[1]
        x = self.norm(tf.matmul(x, self.mix), training=True)
        for net, on in zip(self.nets, (mask, 1 - mask), strict=True):
            scale, shift = tf.split(net(x * on), 2, axis=1)
            scale = tf.tanh(scale) * (1 - on)
            x = x * on + (1 - on) * (x * tf.exp(scale) + shift)
            log_det += tf.reduce_sum(scale, 1)
        return tf.reduce_mean(0.5 * tf.reduce_sum(x**2, 1) - log_det)


def flow() -> Made:
    """Returns a flow with all variables built."""
    model = Flow()
    model.norm.build((None, 6))
    model.compile("adam")
    model.optimizer.build(model.trainable_variables)
    return model, features()


def counter_and_codebook() -> Made:
    """Returns a classifier with a counter and a codebook."""
    model = keras.Sequential(
        [keras.Input((6,)), Counter(), layers.Dense(4), Codebook(), layers.Dense(3)]
    )
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model, features()


def _of_images(kind: type[Networks], *more: Any) -> Any:
    def make() -> Made:
        model = kind()
        model.compile()
        return model, (images()[0], *(m() for m in more))

    return make


MODELS: Makers = {
    "two networks and two optimizers": _of_images(Adversaries),
    "critics with a gradient penalty": _of_images(Critics),
    "conditional adversaries": _of_images(Conditional, labels),
    "four networks and four optimizers": _of_images(Cycles, lambda: normal(ROWS, 8, 8, 2, seed=9)),
    "counts and a codebook": counter_and_codebook,
    "a codebook with gradients": quantised_images,
    "diffusion with a slow copy": diffusion,
    "masked patches": patches,
    "a variational autoencoder with free bits": variational,
    "a flow": flow,
}
