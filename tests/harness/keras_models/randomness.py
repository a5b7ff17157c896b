"""Randomness of each kind: Keras layers, `keras.random`, `tf.random`, NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.keras_models.case import (
    IMAGES,
    OTHER,
    SERIES,
    TARGETS,
    Arguments,
    Case,
    X,
    arrays,
    classifier,
    regressor,
    sgd,
    validated,
)

layers, ops, random = keras.layers, keras.ops, keras.random
TF_RANDOM_TOLD = "tf.random"


class Applies(layers.Layer):
    """Changes its input by a custom function: in training only, unless `always`."""

    def __init__(
        self, function: Callable[[Any, Any], Any], *, seed: int | None = None, always: bool = False
    ) -> None:
        super().__init__()
        self.function = function
        self.always = always
        # `None` leaves the numbers to Keras's global generator.
        self.seed_generator = None if seed is None else random.SeedGenerator(seed)

    def call(self, x: Any, training: bool = False) -> Any:
        """Returns the function's result."""
        return self.function(x, self.seed_generator) if training or self.always else x

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the input."""
        return input_shape


def noise(x: Any, seed: Any) -> Any:
    """Draws a number for each element."""
    return x + 0.3 * random.normal(ops.shape(x), seed=seed)


def uniform_scale(x: Any, seed: Any) -> Any:
    """Draws a number per example, the same for its features."""
    return x * random.uniform((ops.shape(x)[0], 1), 0.5, 1.5, seed=seed)


def one_for_all(x: Any, seed: Any) -> Any:
    """Draws one number for the whole batch."""
    return x + random.normal((), seed=seed)


def drops(x: Any, seed: Any) -> Any:
    """Applies dropout by hand, from two kinds of draws."""
    kept = random.binomial(ops.shape(x), 1.0, 0.8, seed=seed)
    return random.dropout(x, 0.2, seed=seed) * ops.cast(kept, x.dtype)


def categories(x: Any, seed: Any) -> Any:
    """Draws a class for each example from its own logits, and adds it as a number."""
    drawn = random.categorical(x, 2, seed=seed)
    return x + 0.1 * ops.cast(drawn[:, :1], x.dtype)


def integers(x: Any, seed: Any) -> Any:
    """Draws integers, and gamma and beta distributed numbers."""
    whole = random.randint((ops.shape(x)[0], 1), 0, 3, seed=seed)
    gamma = random.gamma(ops.shape(x), 2.0, seed=seed)
    beta = random.beta(ops.shape(x), 2.0, 2.0, seed=seed)
    return x * (ops.cast(whole, x.dtype) + 0.1 * gamma + beta)


def time_major(x: Any, seed: Any) -> Any:
    """Draws with the batch in the second dimension."""
    steps_first = ops.transpose(x, (1, 0, 2))
    return ops.transpose(steps_first + random.normal(ops.shape(steps_first), seed=seed), (1, 0, 2))


def folded(x: Any, seed: Any) -> Any:
    """Draws with examples and their steps in one dimension."""
    flat = ops.reshape(x, (-1, x.shape[-1]))
    return ops.reshape(flat + 0.2 * random.normal(ops.shape(flat), seed=seed), ops.shape(x))


def shuffles(x: Any, seed: Any) -> Any:
    """Shuffles the features."""
    return ops.transpose(random.shuffle(ops.transpose(x), seed=seed))


def tf_normal(x: Any, seed: Any) -> Any:
    """Draws as scripts do whose authors know TensorFlow."""
    return x + 0.3 * tf.random.normal(tf.shape(x))


def tf_seeded(x: Any, seed: Any) -> Any:
    """Draws by an operation's own seed: in plain TensorFlow, the sequence is reproducible."""
    return x + tf.random.uniform(tf.shape(x), seed=3)


def tf_generator(x: Any, seed: Any) -> Any:
    """Draws stateless numbers from a fixed seed: the same in each step."""
    return x + tf.random.stateless_normal([x.shape[-1]], seed=[1, 2])


def tf_dropout(x: Any, seed: Any) -> Any:
    """Applies TensorFlow's dropout."""
    return tf.nn.dropout(x, 0.3)


def tf_cond(x: Any, seed: Any) -> Any:
    """Chooses at random between two branches that draw too."""
    return tf.cond(
        tf.random.uniform([]) > 0.5,
        lambda: x + tf.random.normal(tf.shape(x)),
        lambda: x * tf.random.uniform([tf.shape(x)[0], 1]),
    )


def numpy_at_trace(x: Any, seed: Any) -> Any:
    """Adds a constant: it is drawn when the step is traced."""
    return x + np.random.RandomState(5).normal(size=x.shape[-1]).astype("float32")


def random_layer(function: Any, *, shape: Any = (6,), **arguments: Any) -> Callable[[], Any]:
    """Returns a maker of a regressor with such a layer in it."""
    first = layers.Dense if shape == (6,) else layers.SimpleRNN
    more = {} if shape == (6,) else {"return_sequences": True}

    def model() -> keras.Model:
        inner = [first(4, **more), Applies(function, **arguments)]
        return regressor(*inner, *([layers.Flatten()] if more else []), shape=shape)

    return model


class StochasticDepth(layers.Layer):
    """Drops a whole branch for single examples, as in Keras's example of vision transformers."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.seed_generator = random.SeedGenerator(1337)

    def call(self, x: Any, training: bool = False) -> Any:
        """Draws once per example."""
        if not training:
            return x
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        keep = 1 - self.rate
        return x / keep * ops.floor(keep + random.uniform(shape, 0, 1, seed=self.seed_generator))


class Sampling(layers.Layer):
    """The sampling layer of a variational autoencoder.

    Args:
      normal: makes normally distributed numbers of a shape.
    """

    def __init__(self, normal: Any) -> None:
        super().__init__()
        self.normal = normal

    def call(self, inputs: Any) -> Any:
        """Draws a point of the latent space for each example."""
        mean, log_var = inputs
        self.add_loss(-0.05 * ops.mean(1 + log_var - ops.square(mean) - ops.exp(log_var)))
        return mean + ops.exp(0.5 * log_var) * self.normal(ops.shape(mean))


def autoencoder(normal: Any) -> keras.Model:
    """Returns a functional autoencoder, with the divergence as an added loss."""
    inputs = keras.Input((6,))
    hidden = layers.Dense(5, "tanh")(inputs)
    point = Sampling(normal)([layers.Dense(2)(hidden), layers.Dense(2)(hidden)])
    model = keras.Model(inputs, layers.Dense(6)(point))
    model.compile(sgd(), "mse")
    return model


class NoiseInStep(keras.Model):
    """Draws unseeded `keras.random` in `train_step` and `test_step`, as diffusion models do."""

    def __init__(self, normal: Any = random.normal) -> None:
        super().__init__()
        self.network = keras.Sequential([layers.Dense(6, "tanh"), layers.Dense(6)])
        self.tracker = keras.metrics.Mean(name="noise_loss")
        self.normal = normal

    def call(self, x: Any) -> Any:
        """Predicts the noise in the input."""
        return self.network(x)

    @property
    def metrics(self) -> list[Any]:
        """The metrics for `fit` to reset."""
        return [self.tracker]

    def _loss(self, x: Any) -> Any:
        drawn = self.normal(ops.shape(x))
        rate = random.uniform((ops.shape(x)[0], 1), 0.1, 0.9)
        noisy = ops.sqrt(rate) * x + ops.sqrt(1 - rate) * drawn
        return ops.mean(ops.square(self(noisy) - drawn))

    def train_step(self, x: Any) -> Arguments:
        """Learns to tell noise from data."""
        with tf.GradientTape() as tape:
            loss = self._loss(x)
        variables = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, x: Any) -> Arguments:
        """Computes the same loss."""
        self.tracker.update_state(self._loss(x))
        return {m.name: m.result() for m in self.metrics}


def noise_in_step(normal: Any = random.normal, **arguments: Any) -> keras.Model:
    """Returns the model, compiled without a loss."""
    model = NoiseInStep(normal)
    model.compile(sgd(), **arguments)
    return model


def recurrent_dropout() -> keras.Model:
    """Returns a model with masks that are the same for all steps of a sequence."""
    return regressor(
        layers.LSTM(4, dropout=0.3, recurrent_dropout=0.3, return_sequences=True),
        layers.GRU(3, dropout=0.2, recurrent_dropout=0.2, reset_after=False),
        shape=(6, 3),
    )


def augmented() -> keras.Model:
    """Returns a model that turns and moves images before the first convolution."""
    return classifier(
        layers.RandomFlip("horizontal_and_vertical"),
        layers.RandomRotation(0.1),
        layers.RandomTranslation(0.1, 0.1),
        layers.RandomZoom(0.1),
        layers.Conv2D(3, 3),
        layers.GlobalAveragePooling2D(),
        shape=(8, 8, 1),
    )


def coloured() -> keras.Model:
    """Returns a model that changes the values of images."""
    return classifier(
        layers.RandomContrast(0.3, value_range=(0, 1)),
        layers.RandomBrightness(0.2, value_range=(0, 1)),
        layers.Flatten(),
        shape=(8, 8, 1),
    )


def noisy_layers() -> keras.Model:
    """Returns a model with all noise layers of Keras."""
    return regressor(
        layers.GaussianNoise(0.3),
        layers.Dense(5, "selu"),
        layers.AlphaDropout(0.2),
        layers.GaussianDropout(0.2),
        layers.Dropout(0.3, noise_shape=(None, 1)),
        layers.Dropout(0.3, seed=11),
    )


PLAIN = arrays(X, TARGETS)
IN_SERIES = arrays(SERIES, TARGETS)
VALIDATED = validated(X, TARGETS)


def own(function: Any, **arguments: Any) -> Case:
    """Returns a case with random numbers of its own, and a warning."""
    made = random_layer(function, **arguments)
    return Case(made, PLAIN, OTHER, told=TF_RANDOM_TOLD)


CASES = {
    "dropout": Case(lambda: classifier(layers.Dense(8, "relu"), layers.Dropout(0.4)), validated()),
    "noise layers": Case(noisy_layers, VALIDATED),
    "images are turned and moved": Case(augmented, arrays(IMAGES)),
    "colours of images are changed": Case(coloured, arrays(IMAGES)),
    "recurrent dropout": Case(recurrent_dropout, IN_SERIES),
    "stochastic depth": Case(lambda: regressor(layers.Dense(4), StochasticDepth(0.4)), PLAIN),
    "unseeded normal numbers": Case(random_layer(noise), PLAIN),
    "unseeded numbers in evaluation too": Case(random_layer(noise, always=True), VALIDATED),
    "one number for the batch": Case(random_layer(one_for_all), PLAIN),
    "dropout by hand": Case(random_layer(drops, seed=9), PLAIN),
    "drawn classes": Case(random_layer(categories), PLAIN),
    "whole, gamma and beta distributed numbers": Case(random_layer(integers), PLAIN),
    "numbers with the batch in second place": Case(
        random_layer(time_major, shape=(6, 3)), IN_SERIES
    ),
    "numbers with examples and steps in one place": Case(
        random_layer(folded, shape=(6, 3), seed=2), IN_SERIES
    ),
    "shuffled features": Case(random_layer(shuffles, seed=2), PLAIN),
    "sampling of an autoencoder by TensorFlow": Case(
        lambda: autoencoder(tf.random.normal), arrays(X, X), OTHER, told=TF_RANDOM_TOLD
    ),
    "unseeded numbers in train_step and test_step": Case(
        noise_in_step, lambda: {"x": X, "batch_size": 16, "shuffle": False, "validation_data": X}
    ),
    "the same, eagerly": Case(
        lambda: noise_in_step(run_eagerly=True),
        lambda: {"x": X, "batch_size": 16, "shuffle": False},
    ),
    "tf.random in train_step": Case(
        lambda: noise_in_step(tf.random.normal),
        lambda: {"x": X, "batch_size": 16, "shuffle": False},
        OTHER,
        told=TF_RANDOM_TOLD,
    ),
    "tf.random with an operation's seed": own(tf_seeded),
    "TensorFlow's dropout": own(tf_dropout),
    "tf.random in a condition": own(tf_cond),
    "stateless numbers from a fixed seed": Case(random_layer(tf_generator), PLAIN),
    "NumPy when a step is traced": Case(random_layer(numpy_at_trace), PLAIN),
}
