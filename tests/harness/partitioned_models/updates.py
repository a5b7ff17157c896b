"""Training steps that change gradients, or decide when to apply them."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.harness.partitioned_models.common import (
    Made,
    Makers,
    WithLoss,
    classifier,
    crossentropies,
    crossentropy,
    features,
    layers,
    network,
    of_kind,
)


class Plain(WithLoss):
    """A model with the loss of `compile`."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Returns the plain loss."""
        return self.compute_loss(y=y, y_pred=self(x, training=True))


class Clips(Plain):
    """Clips gradients by their global norm."""

    def changed(self, gradients: Any) -> Any:
        """Always clips: the norm is larger than the limit."""
        return tf.clip_by_global_norm(gradients, 0.05)[0]


class Sharpness(keras.Model):
    """Applies twice: upwards, and downwards from there (Foret et al., "SAM", 2021)."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Moves the weights by hand, and moves them back."""
        x, y = data
        variables = self.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        first = tape.gradient(loss, variables)
        scale = 0.05 / (tf.linalg.global_norm(first) + 1e-12)
        for variable, gradient in zip(variables, first, strict=True):
            variable.assign_add(scale * gradient)
        with tf.GradientTape() as tape:
            other = self.compute_loss(y=y, y_pred=self(x, training=True))
        second = tape.gradient(other, variables)
        for variable, gradient in zip(variables, first, strict=True):
            variable.assign_sub(scale * gradient)
        self.optimizer.apply(second, variables)
        return {"loss": loss, "sharp": other - loss}


class SkipsBadBatches(Clips):
    """Applies only if the loss is small enough; the rate falls with each step."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes a step with a condition around `apply`."""
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.learning_rate.assign(self.optimizer.learning_rate * 0.5)
        tf.cond(loss < 100.0, lambda: self.applied(gradients), lambda: False)
        return {"loss": loss}

    def applied(self, gradients: Any) -> bool:
        """Applies the gradients; a branch of the condition calls this."""
        self.optimizer.apply(gradients, self.trainable_variables)
        return True


class SkipsWhatIsNotFinite(SkipsBadBatches):
    """Skips steps that are not finite: the second batch has such a number."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Applies finite gradients only, and reports whether they were."""
        x, y = data
        x = tf.where(tf.cast(self.optimizer.iterations, tf.int32) + y[:1] == 1, x / 0.0, x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropies(y, self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
        tf.cond(finite, lambda: self.applied(gradients), lambda: False)
        return {"finite": finite}


class SumsUpByHand(Plain):
    """Applies the sum of two steps in every second step (the well-known snippet)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.sums = [
            self.add_weight(shape=v.shape, initializer="zeros", trainable=False)
            for v in self.trainable_variables
        ]

    def train_step(self, data: Any) -> dict[str, Any]:
        """Applies within `tf.cond`."""
        self.steps.assign_add(1)
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        gradients = tape.gradient(loss, self.trainable_variables)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient / 2)
        tf.cond(tf.equal(self.steps % 2, 0), self._applied, lambda: None)
        return {"loss": loss}

    def _applied(self) -> None:
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
        for total in self.sums:
            total.assign(tf.zeros_like(total))


class HalvesTheRate(Plain):
    """Sets the rate to a function of the number of steps."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Sets the rate before the step."""
        steps = keras.ops.cast(self.optimizer.iterations, "float32")
        self.optimizer.learning_rate.assign(0.01 * 0.5**steps)
        return keras.Model.train_step(self, data)


class ClipsByWeights(Plain):
    """Clips each unit's gradient by the norm of its weights (Brock et al., "AGC", 2021)."""

    def changed(self, gradients: Any) -> Any:
        """Takes norms along the first axis."""
        found = []
        for variable, gradient in zip(self.trainable_variables, gradients, strict=True):
            most = 0.01 * tf.maximum(tf.norm(variable, axis=0, keepdims=True), 1e-3)
            norm = tf.norm(gradient, axis=0, keepdims=True)
            found.append(
                tf.where(norm > most, gradient * (most / tf.maximum(norm, 1e-6)), gradient)
            )
        return found


class CentersGradients(keras.optimizers.Adam):
    """Subtracts the mean of each gradient (Yong et al., 2020)."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Centres the gradients of matrices, then applies all."""
        centred = [g - tf.reduce_mean(g, 0) if g.shape.rank > 1 else g for g in grads]
        return super().apply(centred, trainable_variables)


class Projects(WithLoss):
    """Projects conflicting gradients of two losses (Yu et al., "PCGrad", 2020)."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes two gradients from one tape."""
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            said = self(x, training=True)
            one = tf.reduce_mean(crossentropies(y, said))
            other = tf.reduce_mean(said**2)
        variables = self.trainable_variables
        first, second = tape.gradient(one, variables), tape.gradient(other, variables)
        along = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(first, second, strict=True)])
        square = tf.linalg.global_norm(second) ** 2
        away = tf.minimum(along, 0.0) / square
        found = [a - away * b + b for a, b in zip(first, second, strict=True)]
        self.optimizer.apply(found, variables)
        return {"one": one, "along": along}


class Alternates(Plain):
    """Uses another optimizer for the last layer, in every second step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.other = keras.optimizers.SGD(0.1, momentum=0.5)
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.other.build(self.layers[-1].trainable_variables)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Applies one loss to two lists of variables."""
        ours, others = self.layers[1].trainable_variables, self.layers[-1].trainable_variables
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        first, second = tape.gradient(loss, [ours, others])
        self.optimizer.apply(first, ours)
        self.steps.assign_add(1)
        tf.cond(self.steps % 2 == 1, lambda: self._applied(second, others), lambda: None)
        return {"loss": loss}

    def _applied(self, gradients: Any, variables: Any) -> None:
        self.other.apply(gradients, variables)


class Adversarial(Plain):
    """Moves inputs against the loss, three times in a loop (Madry et al., "PGD", 2018)."""

    def loss_of(self, x: Any, y: Any) -> Any:
        """Runs a `tf.while_loop` with a gradient inside."""

        def moved(i: Any, at: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(at)
                loss = tf.reduce_mean(crossentropies(y, self(at)))
            step = at + 0.1 * tf.sign(tape.gradient(loss, at))
            return i + 1, tf.clip_by_value(step, x - 0.2, x + 0.2)

        _, at = tf.while_loop(lambda i, at: i < 3, moved, (0, x))
        return tf.reduce_mean(crossentropies(y, self(tf.stop_gradient(at), training=True)))


class UntilItFits(Plain):
    """Learns from the same batch until the loss is small, at most six times."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Loops on a condition that is a mean over the batch."""
        x, y = data

        def once(i: Any, loss: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(crossentropies(y, self(x, training=True)))
            gradients = tape.gradient(loss, self.trainable_variables)
            for variable, gradient in zip(self.trainable_variables, gradients, strict=True):
                variable.assign_sub(0.5 * gradient)
            return i + 1, loss

        count, loss = tf.while_loop(
            lambda i, loss: (i < 6) & (loss > 0.9), once, (0, tf.constant(9.0, x.dtype))
        )
        return {"loss": loss, "count": count}


def half_precision() -> Made:
    """Returns a model that is in half precision in parts, with a scaled loss."""
    policy = keras.mixed_precision.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh", dtype=policy),
            layers.BatchNormalization(dtype=policy),
            layers.Dense(3, dtype="float32"),
        ]
    )
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=1024.0)
    model.compile(scaled, crossentropy(), metrics=["accuracy"])
    return model, features()


def accumulation_and_dropout() -> Made:
    """Returns a model with Keras's gradient accumulation and a moving mean of the weights."""
    optimizer = keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=2, global_clipnorm=0.5, use_ema=True
    )
    model = classifier(
        layers.Dense(8, activation="relu", kernel_regularizer="l2"),
        layers.Dropout(0.4),
        layers.GaussianNoise(0.1),
        optimizer=optimizer,
    )
    return model, features()


class NotAlwaysFinite(keras.Model):
    """The loss's scale doubles. It is halved when the second batch is skipped."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Makes one row of the batch not finite."""
        x, y = data
        first = tf.range(tf.shape(x)[0])[:, None] == 0
        second = tf.cast(self.optimizer.inner_optimizer.iterations, tf.int32) == 1
        return super().train_step((tf.where(first & second, x / 0.0, x), y))


def scaled() -> keras.optimizers.Optimizer:
    """Returns an optimizer whose scale grows with each step."""
    inner = keras.optimizers.SGD(0.1, clipvalue=0.1)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0, dynamic_growth_steps=1)


def of_optimizer(optimizer: Any) -> Any:
    """Returns a maker of a small model with a regularizer, a constraint and this optimizer."""

    def make() -> Made:
        model = network()
        model.layers[1].kernel_constraint = keras.constraints.UnitNorm()
        model.layers[1].kernel_regularizer = keras.regularizers.OrthogonalRegularizer(0.01)
        model.compile(optimizer(), crossentropy())
        return model, features()

    return make


MODELS: Makers = {
    "gradients clipped in the step": of_kind(Clips, "sgd"),
    "sharpness-aware minimisation": of_kind(Sharpness, "sgd"),
    "a condition round apply, and a learning rate that the step sets": of_kind(SkipsBadBatches),
    "steps that are not finite are left out": of_kind(SkipsWhatIsNotFinite),
    "gradients that are summed up by hand": of_kind(SumsUpByHand),
    "a rate that the step halves": of_kind(HalvesTheRate, "sgd"),
    "gradients clipped by weights": of_kind(ClipsByWeights),
    "gradients without their mean": of_kind(Plain, CentersGradients),
    "projected gradients": of_kind(Projects),
    "two optimizers by turns": of_kind(Alternates),
    "inputs moved in a loop": of_kind(Adversarial),
    "a batch until it fits": of_kind(UntilItFits),
    "accumulation, dropout, EMA": accumulation_and_dropout,
    "a scaled loss that is not finite": of_kind(NotAlwaysFinite, scaled),
    "Adafactor": of_optimizer(lambda: keras.optimizers.Adafactor(0.01)),
    "Lamb": of_optimizer(lambda: keras.optimizers.Lamb(0.01)),
    "Muon": of_optimizer(lambda: keras.optimizers.Muon(0.01)),
    "Ftrl": of_optimizer(lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01)),
}
