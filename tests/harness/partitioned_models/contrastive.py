"""Losses that compare rows with rows, teachers and queues."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.harness.partitioned_models.common import (
    ROWS,
    Made,
    Makers,
    Subclassed,
    WithLoss,
    features,
    labels,
    layers,
    normal,
    of_kind,
)


def _projector(inputs: int = 6, units: int = 3) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(5),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dense(units),
        ]
    )


def _is_nearer_than(alike: Any, others: Any) -> Any:
    """Returns the mean softmax crossentropy: each row's partner is to be the most similar one."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=others, logits=alike)
    )


class Contrasts(WithLoss):
    """Compares two views of each example with all others (Chen et al., "SimCLR", 2020)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Uses the temperature 0.5."""
        rows = tf.shape(x)[0]
        views = tf.concat([self(0.9 * x, training=True), self(x + 0.1, training=True)], 0)
        views = tf.math.l2_normalize(views, 1)
        alike = tf.matmul(views, views, transpose_b=True) / 0.5
        alike -= 1e9 * tf.eye(2 * rows, dtype=alike.dtype)
        others = tf.concat([tf.range(rows, 2 * rows), tf.range(rows)], 0)
        return _is_nearer_than(alike, others)


class SameClass(WithLoss):
    """All examples of a class attract each other (Khosla et al., "SupCon", 2020)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the mean over each row's positives; a row without positives counts as 0."""
        views = tf.math.l2_normalize(self(x, training=True), 1)
        alike = tf.matmul(views, views, transpose_b=True) / 0.1
        others = 1.0 - tf.eye(tf.shape(x)[0], dtype=alike.dtype)
        alike -= tf.stop_gradient(tf.reduce_max(alike, 1, keepdims=True))
        chance = alike - tf.math.log(tf.reduce_sum(tf.exp(alike) * others, 1, keepdims=True))
        same = tf.cast(tf.equal(y[:, None], y[None, :]), alike.dtype) * others
        counts = tf.reduce_sum(same, 1)
        return -tf.reduce_mean(tf.math.divide_no_nan(tf.reduce_sum(same * chance, 1), counts))


class SemiHardTriplets(WithLoss):
    """A triplet loss as in TensorFlow Addons (Schroff et al., "FaceNet", 2015)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Takes, for each pair, the nearest negative that is farther away than the positive."""
        points = tf.math.l2_normalize(self(x, training=True), 1)
        rows = tf.shape(points)[0]
        squares = tf.reduce_sum(points**2, 1)
        products = tf.matmul(points, points, transpose_b=True)
        distances = tf.maximum(squares[:, None] - 2.0 * products + squares[None, :], 0.0)
        same = tf.equal(y[:, None], y[None, :])
        # For each anchor and positive, compare all others, row by row.
        tiled = tf.tile(distances, [rows, 1])
        column = tf.reshape(tf.transpose(distances), [-1, 1])
        farther = tf.tile(~same, [rows, 1]) & (tiled > column)
        found = tf.reshape(tf.reduce_any(farther, 1), [rows, rows])
        largest = tf.reduce_max(tiled, 1, keepdims=True)
        nearest = (
            tf.reduce_min((tiled - largest) * tf.cast(farther, tiled.dtype), 1) + largest[:, 0]
        )
        nearest = tf.transpose(tf.reshape(nearest, [rows, rows]))
        farthest = tf.reduce_max(distances * tf.cast(~same, distances.dtype), 1, keepdims=True)
        negative = tf.where(tf.transpose(found), nearest, farthest)
        pairs = tf.cast(same, distances.dtype) - tf.eye(rows, dtype=distances.dtype)
        losses = tf.maximum((0.5 + distances - negative) * pairs, 0.0)
        return tf.reduce_sum(losses) / tf.maximum(tf.reduce_sum(pairs), 1e-16)


class BarlowTwins(WithLoss):
    """Draws the correlation of features over the batch to the identity (Zbontar et al., 2021)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Normalises the features over the batch."""

        def normalised(f: Any) -> Any:
            return (f - tf.reduce_mean(f, 0)) / (tf.math.reduce_std(f, 0) + 1e-4)

        one = normalised(self(0.9 * x, training=True))
        other = normalised(self(x + 0.1, training=True))
        rows = tf.cast(tf.shape(x)[0], one.dtype)
        correlation = tf.matmul(one, other, transpose_a=True) / rows
        difference = (correlation - tf.eye(3, dtype=one.dtype)) ** 2
        on, off = tf.linalg.trace(difference), tf.reduce_sum(difference)
        return on + 5e-3 * (off - on)


class VarianceAndCovariance(WithLoss):
    """VICReg (Bardes et al., 2022)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Sums three terms: distance, variance and covariance."""
        one, other = self(0.9 * x, training=True), self(x + 0.1, training=True)
        loss = tf.reduce_mean(tf.math.squared_difference(one, other))
        for view in (one, other):
            f = view - tf.reduce_mean(view, 0)
            loss += tf.reduce_mean(tf.nn.relu(1.0 - tf.sqrt(tf.math.reduce_variance(f, 0) + 1e-4)))
            covariance = tf.einsum("bi,bj->ij", f, f) / tf.cast(tf.shape(f)[0] - 1, f.dtype)
            off = tf.linalg.set_diag(covariance, tf.zeros(3, f.dtype))
            loss += tf.reduce_sum(off**2) / 3.0
        return loss


class ImagesAndTexts(Subclassed):
    """Two towers and a learnt temperature (Radford et al., "CLIP", 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.texts = _projector(), _projector(4)
        self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")

    def loss_of(self, x: Any, y: Any) -> Any:
        """Compares rows with columns, and columns with rows."""
        one = keras.ops.normalize(self.images(x, training=True), axis=-1)
        other = keras.ops.normalize(self.texts(y, training=True), axis=-1)
        alike = keras.ops.matmul(one, keras.ops.transpose(other)) * keras.ops.exp(self.temperature)
        own = keras.ops.arange(keras.ops.shape(x)[0])
        rows = keras.losses.sparse_categorical_crossentropy(own, alike, from_logits=True)
        columns = keras.losses.sparse_categorical_crossentropy(
            own, keras.ops.transpose(alike), from_logits=True
        )
        return (keras.ops.mean(rows) + keras.ops.mean(columns)) / 2


class Teacher(Subclassed):
    """A student, and a teacher that follows it after each `apply`."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = _projector(), _projector()
        self.teacher.set_weights(self.student.get_weights())
        self.teacher.trainable = False
        self.rate = 0.9

    def after_apply(self) -> None:
        """Updates the teacher by a moving mean, also of the statistics of batch norm."""
        pairs = zip(self.teacher.weights, self.student.weights, strict=True)
        for slow, fast in pairs:
            slow.assign(self.rate * slow + (1 - self.rate) * fast)


class Byol(Teacher):
    """Predicts a slow copy's output for another view (Grill et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = _projector(3)

    def loss_of(self, x: Any, y: Any) -> Any:
        """Predicts each view from the other one."""
        loss = 0.0
        for one, other in ((0.9 * x, x + 0.1), (x + 0.1, 0.9 * x)):
            said = tf.math.l2_normalize(self.predictor(self.student(one, training=True)), 1)
            target = tf.math.l2_normalize(self.teacher(other, training=True), 1)
            loss += tf.reduce_mean(2.0 - 2.0 * tf.reduce_sum(said * tf.stop_gradient(target), 1))
        return loss


class MeanTeacher(Teacher):
    """Agrees with the teacher on all rows, and uses labels on some (Tarvainen & Valpola, 2017)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Treats rows of class 0 as unlabelled."""
        said = self.student(x, training=True)
        noise = keras.random.normal(tf.shape(x), stddev=0.1, seed=3, dtype=x.dtype)
        target = tf.nn.softmax(self.teacher(x + noise, training=True))
        loss = keras.losses.sparse_categorical_crossentropy(y, said, from_logits=True)
        labelled = tf.cast(y > 0, loss.dtype)
        agreement = tf.reduce_mean((tf.nn.softmax(said) - tf.stop_gradient(target)) ** 2)
        return tf.reduce_sum(labelled * loss) / tf.reduce_sum(labelled) + 2.0 * agreement


class Dino(Teacher):
    """Centres the teacher's outputs by a moving mean (Caron et al., 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.center = self.add_weight(shape=(1, 3), initializer="zeros", trainable=False)

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the crossentropy of two softmaxes."""
        said = self.student(x + 0.1, training=True)
        heard = self.teacher(0.9 * x, training=True)
        target = tf.stop_gradient(tf.nn.softmax((heard - self.center) / 0.04))
        self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(heard, 0, keepdims=True))
        return -tf.reduce_mean(tf.reduce_sum(target * tf.nn.log_softmax(said / 0.1), -1))


class Queue(Teacher):
    """Uses the keys of earlier batches as negatives (He et al., "MoCo", 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = self.add_weight(
            shape=(20, 3), initializer="glorot_uniform", trainable=False, name="queue"
        )

    def loss_of(self, x: Any, y: Any) -> Any:
        """Puts the keys of this batch first, and drops the oldest ones."""
        queries = tf.math.l2_normalize(self.student(0.9 * x, training=True), 1)
        keys = tf.stop_gradient(tf.math.l2_normalize(self.teacher(x + 0.1, training=True), 1))
        positive = tf.einsum("nc,nc->n", queries, keys)[:, None]
        negative = tf.einsum("nc,kc->nk", queries, self.queue)
        logits = tf.concat([positive, negative], 1) / 0.2
        zeros = tf.zeros(tf.shape(x)[0], tf.int32)
        self.queue.assign(tf.concat([keys, self.queue], 0)[:20])
        return _is_nearer_than(logits, zeros)


class QueueWithPointer(Queue):
    """The same with a ring, into which keys are written from a pointer on."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = tf.Variable(self.queue.value, trainable=False)
        self.pointer = tf.Variable(0, trainable=False)

    def loss_of(self, x: Any, y: Any) -> Any:
        """Updates variables of TensorFlow."""
        queries = self.student(0.9 * x, training=True)
        keys = tf.stop_gradient(self.teacher(x + 0.1, training=True))
        logits = tf.matmul(queries, tf.concat([keys, self.ring], 0), transpose_b=True)
        rows = tf.shape(x)[0]
        places = (self.pointer + tf.range(rows)) % 20
        self.ring.scatter_nd_update(places[:, None], keys)
        self.pointer.assign((self.pointer + rows) % 20)
        return _is_nearer_than(logits, tf.range(rows))


class Towers(Subclassed):
    """Uses the batch as negatives, corrected by the logarithm of their counts (Yi et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = layers.Embedding(7, 3), layers.Embedding(5, 3)
        self.counts = self.add_weight(shape=(5,), initializer="ones", trainable=False)
        self.recall = keras.metrics.CategoricalAccuracy(name="recall")

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns a sum of crossentropies, and updates the counts."""
        scores = tf.matmul(self.user(x), self.item(y), transpose_b=True)
        self.counts.assign_add(tf.math.bincount(y, minlength=5, maxlength=5, dtype=scores.dtype))
        share = self.counts / tf.reduce_sum(self.counts)
        scores -= tf.math.log(tf.gather(share, y))[None, :]
        own = tf.eye(tf.shape(x)[0], dtype=scores.dtype)
        # Another row with the same item is not a negative.
        same = tf.cast(tf.equal(y[:, None], y[None, :]), scores.dtype) - own
        self.recall.update_state(own, scores - 1e9 * same)
        return tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(own, scores - 1e9 * same))


def towers() -> Made:
    """Returns the two towers with their metric."""
    model = Towers()
    model.compile(keras.optimizers.Adagrad(0.1))
    batch = labels(7), labels(5, seed=9)
    model.loss_of(*batch)
    model.optimizer.build(model.trainable_variables)
    model.counts.assign(tf.ones_like(model.counts))
    model.recall.reset_state()
    return model, batch


def popularity() -> Made:
    """Returns a model with a layer that counts items.

    The logarithm of their shares is subtracted from the logits.
    """

    class Popularity(layers.Layer):
        def build(self, shape: Any) -> None:
            self.counts = self.add_weight(shape=(12,), initializer="ones", trainable=False)

        def call(self, ids: Any, training: bool = False) -> Any:
            share = keras.ops.log(self.counts / keras.ops.sum(self.counts))
            found = keras.ops.take(share, ids)
            if training:
                self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(ids, 12), axis=0))
            return found

    user, item = keras.Input((4,)), keras.Input((), dtype="int32")
    both = layers.Concatenate()([user, layers.Embedding(12, 3)(item)])
    outputs = layers.Activation("sigmoid")(layers.Dense(1)(both)[:, 0] - Popularity()(item))
    model = keras.Model([user, item], outputs)
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    y = labels(2, seed=9).astype(keras.config.floatx())
    return model, ((normal(ROWS, 4), labels(12)), y)


def _with(kind: type[Subclassed], y: Any = None) -> Any:
    """Returns a maker of such a model, which has no input layer."""

    def make() -> Made:
        model = kind()
        model.compile("adam", loss=None)
        model.optimizer.build(model.trainable_variables)
        x, of_features = features()
        return model, (x, of_features if y is None else y())

    return make


MODELS: Makers = {
    "a contrastive loss": of_kind(Contrasts),
    "a contrastive loss of classes": of_kind(SameClass),
    "semi-hard triplets": of_kind(SemiHardTriplets),
    "Barlow twins": of_kind(BarlowTwins),
    "variances and covariances": of_kind(VarianceAndCovariance),
    "images and texts": _with(ImagesAndTexts, lambda: normal(ROWS, 4, seed=4)),
    "a slow copy predicts": _with(Byol),
    "a mean teacher": _with(MeanTeacher),
    "a centred teacher": _with(Dino),
    "a queue of keys": _with(Queue),
    "a ring of keys": _with(QueueWithPointer),
    "two towers, less the logarithm of counts": towers,
    "counts of items in a layer": popularity,
}
