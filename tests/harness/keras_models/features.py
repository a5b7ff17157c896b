"""Images, normalisation and preprocessing layers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness.keras_models.case import (
    IMAGES,
    LABELS,
    SIZE,
    TARGETS,
    Case,
    X,
    arrays,
    classifier,
    compiled,
    dataset,
    regressor,
    validated,
)

layers, ops = keras.layers, keras.ops
WORDS = np.array(["red", "green", "blue", "grey"])
COLOURS = WORDS[np.random.default_rng(2).integers(0, 4, SIZE)]
TEXTS = np.array(
    [f"the {a} and the {b}" for a, b in zip(COLOURS, COLOURS[::-1], strict=True)], object
)
ON_IMAGES = arrays(IMAGES)


def pictures(*inner: Any, **arguments: Any) -> keras.Model:
    """Returns a model of layers for images, then a mean over places."""
    return classifier(*inner, layers.GlobalAveragePooling2D(), shape=(8, 8, 1), **arguments)


def convolutions() -> keras.Model:
    """Returns a model with convolutions of all kinds, and pooling between them."""
    return pictures(
        layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
        layers.DepthwiseConv2D(3, padding="same"),
        layers.SeparableConv2D(4, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2DTranspose(3, 3, strides=2),
        layers.UpSampling2D(),
        layers.Conv2D(3, 3, dilation_rate=2, groups=3),
        layers.AveragePooling2D(2),
    )


def one_and_three_dimensions() -> keras.Model:
    """Returns a model with convolutions along lines and through volumes."""
    return classifier(
        layers.Reshape((4, 4, 4, 1)),
        layers.Conv3D(2, 2),
        layers.Reshape((27, 2)),
        layers.Conv1D(3, 3, padding="causal"),
        layers.SeparableConv1D(3, 2),
        layers.GlobalMaxPooling1D(),
        shape=(8, 8, 1),
    )


def residual_block(x: Any, filters: int) -> Any:
    """Applies a block as in a ResNet."""
    inner = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    inner = layers.Activation("relu")(layers.BatchNormalization(momentum=0.9)(inner))
    inner = layers.Conv2D(filters, 3, padding="same", use_bias=False)(inner)
    return layers.add([layers.Conv2D(filters, 1)(x), layers.BatchNormalization()(inner)])


def residual() -> keras.Model:
    """Returns a model of two convolutions with batch norm and a way around them."""
    inputs = keras.Input((8, 8, 1))
    x = layers.GlobalAveragePooling2D()(residual_block(inputs, 3))
    return compiled(keras.Model(inputs, layers.Dense(3)(x)))


def batch_norm(**arguments: Any) -> keras.Model:
    """Returns a model with one batch norm."""
    return classifier(layers.Dense(5), layers.BatchNormalization(momentum=0.9, **arguments))


def frozen_batch_norm() -> keras.Model:
    """Returns a model as in fine-tuning: the statistics come from an earlier training."""
    norm = layers.BatchNormalization(
        moving_mean_initializer=keras.initializers.RandomNormal(seed=1),
        moving_variance_initializer=keras.initializers.RandomUniform(0.5, 2.0, seed=2),
    )
    norm.trainable = False
    return classifier(layers.Dense(5), norm)


def norms_of_examples() -> keras.Model:
    """Returns a model with norms that use single examples only."""
    return pictures(
        layers.Conv2D(4, 3),
        layers.GroupNormalization(2),
        layers.Conv2D(4, 3),
        layers.LayerNormalization(),
        layers.UnitNormalization(),
        layers.Conv2D(3, 2),
        layers.RMSNormalization(),
    )


def adapted() -> keras.Model:
    """Returns a model that normalises its input by the data given to `adapt`."""
    normalise, buckets = layers.Normalization(), layers.Discretization(num_bins=4)
    normalise.adapt(X)
    buckets.adapt(X)
    inputs = keras.Input((6,))
    encoded = layers.CategoryEncoding(4, output_mode="count")(buckets(inputs))
    joined = layers.concatenate([normalise(inputs), encoded])
    return compiled(keras.Model(inputs, layers.Dense(3)(joined)))


def texts(**arguments: Any) -> keras.Model:
    """Returns a model whose input is strings."""
    vectorise = layers.TextVectorization(output_mode="int", output_sequence_length=5, **arguments)
    vectorise.adapt(TEXTS)
    size = vectorise.vocabulary_size()
    stack = [
        keras.Input((), dtype="string"),
        vectorise,
        layers.Embedding(size, 4),
        layers.Flatten(),
        layers.Dense(3),
    ]
    return compiled(keras.Sequential(stack))


def tables() -> keras.Model:
    """Returns a model of categories, hashed categories and numbers, as in a guide of Keras."""
    colour = keras.Input((1,), dtype="string", name="colour")
    number = keras.Input((1,), dtype="int64", name="number")
    values = keras.Input((6,), name="values")
    lookup = layers.StringLookup(vocabulary=WORDS.tolist(), output_mode="one_hot")
    numbers = layers.IntegerLookup(vocabulary=[0, 1], output_mode="one_hot")
    hashed = layers.Hashing(5, output_mode="one_hot")(colour)
    joined = layers.concatenate([lookup(colour), numbers(number), hashed, values])
    return compiled(keras.Model([colour, number, values], layers.Dense(3)(joined)))


def scaled_images() -> keras.Model:
    """Returns a model that scales, resizes and crops its images."""
    return pictures(
        layers.Rescaling(1 / 255, offset=-0.5),
        layers.Resizing(6, 6),
        layers.CenterCrop(5, 5),
        layers.Conv2D(3, 3),
    )


class VectorQuantizer(layers.Layer):
    """Has a straight-through estimate and two added losses, as in the VQ-VAE example."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = self.add_weight(shape=(2, 7), initializer="random_uniform", name="codes")

    def call(self, x: Any) -> Any:
        """Returns the nearest codes."""
        similarity = x @ self.codes
        distances = ops.sum(x**2, 1, keepdims=True) + ops.sum(self.codes**2, 0) - 2 * similarity
        chosen = ops.one_hot(ops.argmin(distances, 1), 7) @ ops.transpose(self.codes)
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(chosen) - x) ** 2))
        self.add_loss(ops.mean((chosen - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(chosen - x)


class Centred(layers.Layer):
    """Centres features by a moving mean.

    Args:
      present: whether the mean includes the batch's own examples, or only those of earlier steps.
    """

    def __init__(self, present: bool) -> None:
        super().__init__()
        self.present = present

    def build(self, input_shape: Any) -> None:
        """Makes one mean per feature."""
        self.mean = self.add_weight(shape=(input_shape[-1],), trainable=False, initializer="zeros")

    def call(self, x: Any, training: bool = False) -> Any:
        """Subtracts the mean so far."""
        before = self.mean + 0.0
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * ops.mean(x, 0))
        return x - (self.mean if self.present else before)


class OwnBatchNorm(layers.Layer):
    """Batch norm as people write it to see how it works.

    Its type does not tell that it is one: it is no layer of Keras.
    """

    def call(self, x: Any) -> Any:
        """Centres and scales the input by the batch."""
        mean = ops.mean(x, axis=0, keepdims=True)
        return (x - mean) / ops.sqrt(ops.var(x, axis=0, keepdims=True) + 1e-3)


class InputIsKept(layers.Layer):
    """Counts steps in a variable of its own, on which its loss depends."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = self.add_weight(
            shape=(), dtype="int64", trainable=False, initializer="zeros", name="steps"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        """Adds a penalty that grows with the steps."""
        if training:
            self.steps.assign_add(1)
        self.add_loss(0.01 * ops.cast(self.steps, "float32") * ops.mean(ops.square(x)))
        return x


TABLE = {"colour": COLOURS[:, None], "number": (LABELS % 3)[:, None], "values": X}


class Labelled(layers.Layer):
    """Holds texts, which cannot be sent to other workers."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [tf.Variable(["a", "b"], name="names", trainable=False)]

    def call(self, x: Any) -> Any:
        """Returns its input."""
        return x


CASES = {
    "convolutions of all kinds": Case(convolutions, ON_IMAGES),
    "convolutions along lines and through volumes": Case(one_and_three_dimensions, ON_IMAGES),
    "batch norm": Case(batch_norm, validated()),
    "a residual block": Case(residual, ON_IMAGES),
    "frozen batch norm": Case(frozen_batch_norm, validated()),
    "norms of single examples": Case(norms_of_examples, ON_IMAGES),
    "spectral norm": Case(
        lambda: regressor(layers.SpectralNormalization(layers.Dense(4))),
        arrays(X, TARGETS),
    ),
    "numbers that adapt has seen": Case(adapted, validated()),
    "strings": Case(lambda: texts(ngrams=2), validated(TEXTS)),
    "categories and numbers in a dict": Case(tables, lambda: {"x": dataset(TABLE, LABELS)}),
    "images of whole numbers": Case(scaled_images, validated((255 * IMAGES).astype("uint8"))),
    "quantised vectors": Case(
        lambda: regressor(layers.Dense(2), VectorQuantizer()), arrays(X, TARGETS)
    ),
    "a moving mean of the steps before": Case(
        lambda: regressor(layers.Dense(4), Centred(present=False)), validated(X, TARGETS)
    ),
    "a moving mean that takes the batch in": Case(
        lambda: regressor(layers.Dense(4), Centred(present=True)),
        validated(X, TARGETS),
    ),
    "batch norm of one's own": Case(
        lambda: regressor(layers.Dense(4), OwnBatchNorm()),
        arrays(X, TARGETS),
    ),
    "a variable of texts": Case(
        lambda: regressor(Labelled()),
        arrays(X, TARGETS),
        told=r"differ from worker to worker: names:0 \(string \(2,\)\)",
    ),
    "a penalty that grows with the steps": Case(
        lambda: regressor(layers.Dense(4), InputIsKept()), arrays(X, TARGETS)
    ),
}
