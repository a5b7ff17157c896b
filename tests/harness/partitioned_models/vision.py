"""Convolutions, norms over the batch, boxes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.harness.partitioned_models.common import (
    ROWS,
    Made,
    Makers,
    WithLoss,
    classifier,
    crossentropies,
    crossentropy,
    images,
    labels,
    layers,
    normal,
    ops,
)


def _compiled(inputs: Any, outputs: Any, optimizer: Any = "sgd", **more: Any) -> keras.Model:
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, **{"loss": crossentropy(), **more})
    return model


def batch_norm() -> Made:
    """Returns a model with two batch norms."""
    model = classifier(
        layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Conv2D(4, 2, use_bias=False),
        layers.BatchNormalization(),
        layers.GlobalAveragePooling2D(),
        shape=(8, 8, 2),
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
    )
    return model, images()


def residual() -> Made:
    """Returns a block with a shortcut and a projection (He et al., "ResNet", 2016)."""
    inputs = keras.Input((8, 8, 2))
    hidden = layers.ZeroPadding2D(1)(inputs)
    hidden = layers.Conv2D(3, 3, strides=2, use_bias=False)(hidden)
    hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
    other = layers.BatchNormalization()(layers.Conv2D(3, 3, padding="same")(hidden))
    hidden = layers.ReLU()(layers.Add()([hidden, other]))
    outputs = layers.Dense(3)(layers.GlobalAveragePooling2D()(hidden))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    return _compiled(inputs, outputs, optimizer), images()


def mobile() -> Made:
    """Returns depthwise convolutions, squeeze and excitation (Howard et al., "MobileNet", 2019)."""
    inputs = keras.Input((8, 8, 2))
    hidden = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(inputs)
    hidden = layers.BatchNormalization(momentum=0.9)(hidden)
    hidden = layers.Activation("hard_swish")(hidden)
    squeezed = layers.GlobalAveragePooling2D(keepdims=True)(hidden)
    excited = layers.Conv2D(2, 1, activation="hard_sigmoid")(squeezed)
    hidden = layers.Multiply()([hidden, excited])
    hidden = layers.BatchNormalization()(layers.Conv2D(3, 1, use_bias=False)(hidden))
    outputs = layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.ReLU(6.0)(hidden)))
    return _compiled(inputs, outputs, keras.optimizers.RMSprop(0.01, momentum=0.9)), images()


def u_net() -> Made:
    """Returns a network that goes down and up, with a shortcut (Ronneberger et al., 2015)."""
    inputs = keras.Input((8, 8, 2))
    fine = layers.Activation("relu")(
        layers.BatchNormalization()(
            layers.SeparableConv2D(3, 3, padding="same", use_bias=False)(inputs)
        )
    )
    coarse = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.MaxPooling2D()(fine))
    coarse = layers.SpatialDropout2D(0.2)(layers.BatchNormalization()(coarse))
    again = layers.UpSampling2D(2, interpolation="bilinear")(coarse)
    outputs = layers.Conv2D(3, 3, padding="same")(layers.Concatenate()([fine, again]))
    metric = keras.metrics.MeanIoU(3, sparse_y_pred=False)
    model = _compiled(inputs, outputs, "adam", metrics=[metric])
    x, _ = images()
    return model, (x, (x[..., 0] > 0.2).astype("int32") + (x[..., 1] > 0.2))


def spectral() -> Made:
    """Returns a model that divides weights by their largest singular value.

    Each step adds one step of a power iteration.
    """
    norm = layers.SpectralNormalization
    model = classifier(
        norm(layers.Conv2D(3, 3)), layers.Flatten(), norm(layers.Dense(4)), shape=(8, 8, 2)
    )
    return model, images()


class Whitens(layers.Layer):
    """Whitens by the covariance of the batch, and keeps its moving mean (Huang et al., 2018)."""

    def build(self, shape: Any) -> None:
        """Makes the matrix of the moving mean."""
        self.kept = self.add_weight(shape=(4, 4), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        """Solves with Cholesky's factor."""
        x -= tf.reduce_mean(x, 0)
        covariance = tf.matmul(x, x, transpose_a=True) / tf.cast(tf.shape(x)[0], x.dtype)
        covariance += 0.1 * tf.eye(4, dtype=x.dtype)
        self.kept.assign(0.9 * self.kept + 0.1 * covariance)
        factor = tf.linalg.cholesky(covariance)
        return tf.transpose(tf.linalg.triangular_solve(factor, tf.transpose(x)))


def whitening() -> Made:
    """Returns a classifier with whitening."""
    model = classifier(layers.Dense(4), Whitens())
    return model, (normal(ROWS, 6), labels())


class Mixes(WithLoss):
    """Mixes each row with another one, in a drawn order (Zhang et al., "mixup", 2018)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seeds = keras.random.SeedGenerator(7)

    def loss_of(self, x: Any, y: Any) -> Any:
        """Also replaces a box of each image by one of another (Yun et al., "CutMix", 2019)."""
        order = tf.argsort(keras.random.uniform((tf.shape(x)[0],), seed=self.seeds))
        share = keras.random.beta((), 0.4, 0.4, seed=self.seeds, dtype=x.dtype)
        mixed = share * x + (1 - share) * tf.gather(x, order)
        column = tf.range(8)[None, None, :, None]
        first = keras.random.randint((), 0, 5, seed=self.seeds)
        inside = (column >= first) & (column < first + 3)
        mixed = tf.where(inside, tf.reverse(mixed, [0]), mixed)
        said = self(mixed, training=True)
        one, other = crossentropies(y, said), crossentropies(tf.gather(y, order), said)
        return tf.reduce_mean(share * one + (1 - share) * other)


def mixup() -> Made:
    """Returns such a model of images."""
    inputs = keras.Input((8, 8, 2))
    hidden = layers.Conv2D(3, 3, activation="relu")(inputs)
    model = Mixes(inputs, layers.Dense(3)(layers.Flatten()(hidden)))
    model.compile("adam")
    return model, images()


class Boxes(WithLoss):
    """Boxes and classes of anchors, matched within the batch (Lin et al., "RetinaNet", 2017)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Sums over matching anchors, divided by their number; counts the hardest others too."""
        said = self(x, training=True)
        boxes, logits = said[..., :4], said[..., 4]
        positive = tf.cast(x[:, ::2, ::2, 0] > 0.5, x.dtype)
        count = tf.maximum(tf.reduce_sum(positive), 1.0)
        error = tf.abs(boxes - tf.cast(y, x.dtype)[:, None, None, None])
        smooth = tf.where(error < 1.0, 0.5 * error**2, error - 0.5)
        on_boxes = tf.reduce_sum(smooth * positive[..., None]) / count
        each = tf.nn.sigmoid_cross_entropy_with_logits(positive, logits)
        negatives = tf.reshape(each * (1 - positive), [-1])
        kept = tf.minimum(tf.cast(3.0 * count, tf.int32), tf.size(negatives))
        hardest = tf.sort(negatives, direction="DESCENDING")[:kept]
        return on_boxes + (tf.reduce_sum(each * positive) + tf.reduce_sum(hardest)) / count


def boxes() -> Made:
    """Returns a model with one anchor at each of 16 places."""
    inputs = keras.Input((8, 8, 2))
    model = Boxes(inputs, layers.Conv2D(5, 3, strides=2, padding="same")(inputs))
    model.compile("adam")
    return model, images()


class GhostNorm(layers.Layer):
    """Batch norm of fixed groups of rows (Hoffer et al., 2017)."""

    def call(self, x: Any) -> Any:
        """Normalises groups of three rows."""
        groups = ops.reshape(x, (-1, 3, 4))
        mean, variance = ops.moments(groups, axes=[1], keepdims=True)
        return ops.reshape((groups - mean) / ops.sqrt(variance + 1e-3), ops.shape(x))


def ghosts() -> Made:
    """Returns a classifier; its 12 rows are four groups."""
    return classifier(layers.Dense(4), GhostNorm()), (normal(ROWS, 6), labels())


def renorm() -> Made:
    """Returns batch norm over volumes, without scale, next to a layer norm and a unit norm."""
    model = classifier(
        layers.Conv1D(4, 3, padding="causal"),
        layers.BatchNormalization(axis=1, scale=False),
        layers.LayerNormalization(),
        layers.BatchNormalization(center=False),
        layers.Flatten(),
        layers.UnitNormalization(),
        shape=(6, 2),
    )
    return model, (normal(ROWS, 6, 2), labels())


MODELS: Makers = {
    "batch norm": batch_norm,
    "a residual network": residual,
    "a mobile network": mobile,
    "a network that goes down and up": u_net,
    "spectral norms": spectral,
    "whitening": whitening,
    "images mixed with others": mixup,
    "boxes per match": boxes,
    "norms of fixed groups of rows": ghosts,
    "norms along other axes": renorm,
}
