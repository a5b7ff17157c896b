"""Losses that are neither means nor sums over rows."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.harness.partitioned_models.common import (
    ROWS,
    Made,
    Makers,
    WithLoss,
    crossentropies,
    images,
    labels,
    layers,
    normal,
    of_kind,
    ops,
)


class Flooding(keras.Model):
    """Keeps the loss above a level: it is reflected when it gets smaller."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Ishida et al., "Do we need zero training loss after achieving zero training error?"."""
        return ops.abs(super().compute_loss(*args, **kwargs) - 1.2) + 1.2


class IgnoresLabels(WithLoss):
    """A mean over the labels that are not 0."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Divides by the number of such labels, however many they are."""
        each = crossentropies(y, self(x))
        counts = tf.cast(y != 0, each.dtype)
        mean = tf.reduce_sum(each * counts) / tf.reduce_sum(counts)
        return mean + 0.1 * tf.reduce_mean(tf.boolean_mask(each, y == 1))


class PenalizesGradients(WithLoss):
    """Penalizes gradients of outputs by inputs (Gulrajani et al., "WGAN-GP", 2017)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Uses the gradient norms of single examples."""
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = self(x, training=True)
        squares = tf.reduce_sum(tape.gradient(outputs, x) ** 2, 1)
        return tf.reduce_mean((tf.sqrt(squares + 1e-6) - 1.0) ** 2) + tf.reduce_mean(outputs)


class HardestExamples(WithLoss):
    """The mean over the worst half of the batch (Shrivastava et al., "OHEM", 2016)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Takes half as many losses as there are rows."""
        each = crossentropies(y, self(x, training=True))
        worst = tf.math.top_k(each, tf.shape(each)[0] // 2, sorted=False).values
        return tf.reduce_mean(worst)


class CentersOfClasses(WithLoss):
    """Pulls rows to the centers of their classes, a moving mean (Wen et al., 2016)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.centers = self.add_weight(
            shape=(3, 3), initializer="glorot_uniform", trainable=False, name="centers"
        )

    def loss_of(self, x: Any, y: Any) -> Any:
        """Moves the centers of the classes in the batch."""
        embedded = self(x, training=True)
        distance = embedded - tf.gather(self.centers, y)
        loss = tf.reduce_mean(crossentropies(y, embedded))
        loss += 0.1 * tf.reduce_mean(tf.reduce_sum(distance**2, -1))
        counts = tf.math.unsorted_segment_sum(tf.ones_like(y, distance.dtype), y, 3)
        moved = tf.math.unsorted_segment_sum(tf.stop_gradient(distance), y, 3)
        self.centers.assign_add(0.5 * moved / (1.0 + counts[:, None]))
        return loss


class FairGroups(WithLoss):
    """Gives the worst group the largest weight, step by step (Sagawa et al., "group DRO", 2020)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = self.add_weight(shape=(2,), initializer="ones", trainable=False)

    def loss_of(self, x: Any, y: Any) -> Any:
        """Groups rows by the sign of their first number."""
        each = crossentropies(y, self(x, training=True))
        group = tf.cast(x[:, 0] > 0, tf.int32)
        means = tf.math.unsorted_segment_mean(each, group, 2)
        weights = self.groups * tf.exp(0.1 * tf.stop_gradient(means))
        self.groups.assign(weights / tf.reduce_sum(weights))
        return tf.reduce_sum(self.groups * means)


class Focuses(WithLoss):
    """Focal loss divided by the number of positives, as in RetinaNet (Lin et al., 2017)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Divides by the positives of the batch, at least by 1."""
        truth = tf.one_hot(y, 3, dtype=x.dtype)
        focal = keras.losses.BinaryFocalCrossentropy(from_logits=True, reduction="none")
        each = focal(truth[..., None], self(x, training=True)[..., None])
        positives = tf.reduce_sum(tf.cast(y > 0, x.dtype))
        return tf.reduce_sum(each) / tf.maximum(positives, 1.0)


class OfMoments(WithLoss):
    """Compares means and covariances of the outputs for two domains, `x` and `-x`."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Follows Sun & Saenko, "Deep CORAL", 2016."""
        source, target = self(x, training=True), self(-x, training=True)

        def covariance(f: Any) -> Any:
            rows = tf.cast(tf.shape(f)[0], f.dtype)
            f = f - tf.reduce_mean(f, 0, keepdims=True)
            return tf.matmul(f, f, transpose_a=True) / (rows - 1.0)

        coral = tf.reduce_sum((covariance(source) - covariance(target)) ** 2) / 36.0
        shift = tf.reduce_mean(source, 0) - tf.reduce_mean(target, 0)
        return coral + tf.norm(shift) + tf.reduce_mean(crossentropies(y, source))


class Ranks(WithLoss):
    """Ranks pairs of rows: one must come before the other (Burges, "RankNet", 2005)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the mean over those pairs only."""
        scores = self(x, training=True)[:, 0]
        differences = scores[:, None] - scores[None, :]
        before = tf.cast(y[:, None] > y[None, :], scores.dtype)
        return tf.reduce_sum(before * tf.nn.softplus(-differences)) / tf.reduce_sum(before)


class Survival(WithLoss):
    """Cox's partial likelihood: each sum is over all rows still at risk (Katzman, 2018)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Sorts the rows by time, the last first."""
        risk = tf.gather(self(x, training=True)[:, 0], tf.argsort(-x[:, 0]))
        happened = tf.cast(tf.gather(y, tf.argsort(-x[:, 0])) > 0, risk.dtype)
        at_risk = tf.math.log(tf.cumsum(tf.exp(risk)))
        return -tf.reduce_sum((risk - at_risk) * happened) / tf.reduce_sum(happened)


def dice() -> Made:
    """Returns a model with binary crossentropy and the overlap of the whole batch as loss."""

    def loss(y: Any, p: Any) -> Any:
        y = ops.cast(y, p.dtype)
        both = ops.sum(y) + ops.sum(p)
        overlap = (2 * ops.sum(y * p) + 1) / (both + 1)
        return ops.mean(keras.losses.binary_crossentropy(y, p)) + 1 - overlap

    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid"),
        ]
    )
    model.compile("adam", loss, metrics=[keras.metrics.BinaryIoU()])
    x, _ = images()
    return model, (x, (x[..., :1] > 0.2).astype(x.dtype))


def ignored_places() -> Made:
    """Returns a segmentation model; labels of -1 do not count in loss and metric."""

    def kept(y: Any, dtype: Any) -> Any:
        return ops.cast(y != -1, dtype)

    def loss(y: Any, p: Any) -> Any:
        each = ops.sparse_categorical_crossentropy(ops.maximum(y, 0), p, from_logits=True)
        return ops.sum(each * kept(y, p.dtype)) / ops.sum(kept(y, p.dtype))

    def accuracy(y: Any, p: Any) -> Any:
        right = ops.cast(ops.cast(ops.argmax(p, -1), y.dtype) == y, p.dtype)
        return ops.sum(right * kept(y, p.dtype)) / ops.sum(kept(y, p.dtype))

    model = keras.Sequential([keras.Input((4, 6)), layers.Dense(8, "tanh"), layers.Dense(3)])
    model.compile("adam", loss, metrics=[accuracy])
    y = labels(seed=8)[:, None] - (normal(ROWS, 4) > 0.3)
    return model, (normal(ROWS, 4, 6), y.astype("int32"))


def flooding() -> Made:
    """Returns a model with a loss near the level, so that it may be on either side."""
    return of_kind(Flooding)()


def uncertain_tasks() -> Made:
    """Returns a model that learns the weights of two losses (Kendall et al., 2018)."""

    class Tasks(WithLoss):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.spread = self.add_weight(shape=(2,), initializer="zeros", name="spread")

        def loss_of(self, x: Any, y: Any) -> Any:
            outputs = self(x, training=True)
            classes = tf.reduce_mean(crossentropies(y, outputs))
            root = tf.sqrt(tf.reduce_mean((outputs[:, 0] - x[:, 0]) ** 2))
            both = tf.stack([classes, root])
            return tf.reduce_sum(both * tf.exp(-self.spread) + self.spread)

    return of_kind(Tasks)()


def huber_of_scaled_errors() -> Made:
    """Returns a model that divides errors by their median and cuts large ones."""

    class Robust(WithLoss):
        def loss_of(self, x: Any, y: Any) -> Any:
            error = self(x, training=True)[:, 0] - tf.cast(y, x.dtype)
            middle = tf.sort(tf.abs(tf.stop_gradient(error)))[tf.shape(error)[0] // 2]
            return tf.reduce_mean(tf.minimum((error / middle) ** 2, 4.0))

    return of_kind(Robust)()


def crossentropy_of_batch_frequencies() -> Made:
    """Returns a model with class weights from the batch's own frequencies."""

    class Balanced(WithLoss):
        def loss_of(self, x: Any, y: Any) -> Any:
            counts = tf.reduce_sum(tf.one_hot(y, 3, dtype=x.dtype), 0)
            weights = tf.gather(tf.reduce_sum(counts) / (3.0 * counts + 1.0), y)
            return tf.reduce_mean(weights * crossentropies(y, self(x, training=True)))

    return of_kind(Balanced)()


MODELS: Makers = {
    "flooding": flooding,
    "a mean over valid labels": of_kind(IgnoresLabels),
    "a gradient penalty": of_kind(PenalizesGradients),
    "a Dice loss": dice,
    "labels of -1 do not count": ignored_places,
    "the hardest half of the batch": of_kind(HardestExamples),
    "centers of classes": of_kind(CentersOfClasses),
    "the worst group": of_kind(FairGroups),
    "a focal loss per positive": of_kind(Focuses),
    "covariances of two domains": of_kind(OfMoments),
    "pairs of rows": of_kind(Ranks),
    "the likelihood of Cox": of_kind(Survival),
    "weights of losses are learnt": uncertain_tasks,
    "errors by their median": huber_of_scaled_errors,
    "classes by their frequency in the batch": crossentropy_of_batch_frequencies,
}
