"""Custom `train_step`s, modelled on Keras's guides and examples."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.harness.keras_models.case import (
    TARGETS,
    WEIGHTS,
    Arguments,
    Case,
    X,
    adam,
    arrays,
    compiled,
    sgd,
    validated,
)

layers, losses, metrics, ops, random = (
    keras.layers,
    keras.losses,
    keras.metrics,
    keras.ops,
    keras.random,
)


def small_network(units: int = 2, inputs: int = 6) -> keras.Model:
    """Returns a model of two dense layers."""
    return keras.Sequential([keras.Input((inputs,)), layers.Dense(5, "tanh"), layers.Dense(units)])


class Step:
    """The guide's first step: `compute_loss`, a tape, the metrics of `compile`."""

    def train_step(self, data: Any) -> Arguments:
        """Uses sample weights, if there are any."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        self._apply(tape, loss)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}

    def _apply(self, tape: tf.GradientTape, loss: Any) -> None:
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))


class OwnStep(Step, keras.Model):
    """A functional model, apart from the others: Keras changes the bases of such a class."""


class OwnTrackers(OwnStep):
    """The guide's second step: its own loss and two trackers; `compile` gets only an optimizer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_tracker = metrics.Mean(name="loss")
        self.mae_metric = metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = losses.MeanSquaredError()

    @property
    def metrics(self) -> list[Any]:
        """The metrics, which are reset at the start of each epoch."""
        return [self.loss_tracker, self.mae_metric]

    def train_step(self, data: Any) -> Arguments:
        """Adds the loss of the batch to the logs too."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        self._apply(tape, loss)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {**{m.name: m.result() for m in self.metrics}, "loss_now": loss}

    def test_step(self, data: Any) -> Arguments:
        """Updates the same metrics."""
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred))
        self.mae_metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class Holder(OwnTrackers):
    """Keeps its optimizer, a metric and a counter where neither Keras nor `metrics` looks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held = {"optimizers": [adam()]}
        self.seen = metrics.Mean(name="seen")
        self.counts = [(tf.Variable(0.0, trainable=False),)]

    def _apply(self, tape: tf.GradientTape, loss: Any) -> None:
        gradients = tape.gradient(loss, self.trainable_variables)
        self.held["optimizers"][0].apply(gradients, self.trainable_variables)

    def train_step(self, data: Any) -> Arguments:
        """Updates `seen`, which is never reset."""
        logs = super().train_step(data)
        self.seen.update_state(data[1])
        self.counts[0][0].assign_add(1.0)
        return {**logs, "seen": self.seen.result()}


def functional(kind: type[keras.Model], **arguments: Any) -> keras.Model:
    """Returns a functional model of a class with a custom step."""
    inputs = keras.Input((6,))
    model = kind(inputs, small_network()(inputs))
    model.compile(**{"optimizer": sgd(), **arguments})
    return model


class Autoencoder(Step, keras.Model):
    """Has no `call`; its loss is a mean over examples of sums over features."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = small_network(4), small_network(6, 2)
        self.total, self.reconstruction, self.divergence = (
            metrics.Mean(name=n) for n in ("loss", "reconstruction_loss", "kl_loss")
        )
        self.seed_generator = random.SeedGenerator(1337)

    @property
    def metrics(self) -> list[Any]:
        """All three metrics."""
        return [self.total, self.reconstruction, self.divergence]

    def train_step(self, data: Any) -> Arguments:
        """Takes a step like the variational autoencoder of Keras's examples."""
        with tf.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(data), 2, axis=1)
            noise = random.normal(ops.shape(mean), seed=self.seed_generator)
            decoded = self.decoder(mean + ops.exp(0.5 * log_var) * noise)
            reconstruction = ops.mean(ops.sum(ops.square(data - decoded), axis=1))
            divergence = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            divergence = ops.mean(ops.sum(divergence, axis=1))
            total = reconstruction + divergence
        self._apply(tape, total)
        self.total.update_state(total)
        self.reconstruction.update_state(reconstruction)
        self.divergence.update_state(divergence)
        return {m.name: m.result() for m in self.metrics}


class Distiller(keras.Model):
    """A student learns from labels and from a teacher. `compute_loss` combines both losses."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = small_network(3), small_network(3)
        self.teacher.trainable = False

    def call(self, x: Any) -> Any:
        """Returns the output of the student."""
        return self.student(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        """Returns the weighted sum of both losses."""
        own = super().compute_loss(x, y, y_pred, sample_weight)
        soft = [ops.softmax(logits / 3.0) for logits in (self.teacher(x, training=False), y_pred)]
        return 0.3 * own + 0.7 * losses.KLDivergence()(*soft) * 9.0


class SlowTeacher(Step, keras.Model):
    """Keeps a copy of the weights that follows by a moving average after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.ema_network = small_network(), small_network()
        self.ema_network.set_weights(self.network.get_weights())
        self.ema_network.trainable = False

    def call(self, x: Any) -> Any:
        """Returns the output of the network."""
        return self.network(x)

    def train_step(self, data: Any) -> Arguments:
        """Updates the copy from the weights after the step."""
        logs = super().train_step(data)
        for weight, ema in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema.assign(0.9 * ema + 0.1 * weight)
        return logs


class TargetNetwork(SlowTeacher):
    """Takes targets from a copy that is renewed every third step, as in deep Q-learning."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.add_weight(
            shape=(), dtype="int32", trainable=False, initializer="zeros", name="count"
        )

    def train_step(self, data: Any) -> Arguments:
        """Renews the copy before it learns."""
        x, y = data
        renew = ops.cast(ops.equal(self.count % 3, 0), "float32")
        for weight, old in zip(self.network.weights, self.ema_network.weights, strict=True):
            old.assign(renew * weight + (1 - renew) * old)
        self.count.assign_add(1)
        target = y + 0.5 * ops.stop_gradient(self.ema_network(x))
        return Step.train_step(self, (x, target))


class GradientPenalty(OwnStep):
    """Penalizes the gradient with respect to the input of each example."""

    def train_step(self, data: Any) -> Arguments:
        """Uses a tape within a tape."""
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y_pred = self(x, training=True)
            slopes = inner.gradient(y_pred, x)
            norms = ops.sqrt(ops.sum(ops.square(slopes), 1) + 1e-8)
            loss = self.compute_loss(y=y, y_pred=y_pred) + 0.2 * ops.mean(ops.square(norms - 1))
        self._apply(tape, loss)
        return {**self.compute_metrics(x, y, y_pred), "slope": ops.mean(norms)}


class Adversarial(OwnStep):
    """Trains on inputs that are moved against it (fast gradient sign)."""

    def train_step(self, data: Any) -> Arguments:
        """Moves the inputs to raise the loss, and learns from them."""
        x, y = data
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        return super().train_step((x + 0.05 * ops.sign(inner.gradient(loss, x)), y))


class Accumulates(OwnStep):
    """Adds up the gradients of two batches in variables of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sums = [self._zeros(v) for v in self.trainable_variables]
        self.count = self.add_weight(shape=(), trainable=False, initializer="zeros", name="count")

    def _zeros(self, like: Any) -> Any:
        return self.add_weight(shape=like.shape, trainable=False, initializer="zeros")

    def train_step(self, data: Any) -> Arguments:
        """Applies the mean of two batches at every second one, and zeros at the others."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        now = ops.cast(ops.equal(self.count % 2, 1), "float32")
        totals = [s + g for s, g in zip(self.sums, gradients, strict=True)]
        self.optimizer.apply([now * t / 2 for t in totals], self.trainable_variables)
        for s, total in zip(self.sums, totals, strict=True):
            s.assign((1 - now) * total)
        self.count.assign_add(1.0)
        return self.compute_metrics(x, y, y_pred)


class AppliesByHand(OwnStep):
    """Moves the weights itself, without the optimizer."""

    def train_step(self, data: Any) -> Arguments:
        """Follows the gradient."""
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        variables = self.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return self.compute_metrics(x, y, y_pred)


class PseudoLabels(OwnStep):
    """Takes labelled and unlabelled examples in one nested tuple."""

    def train_step(self, data: Any) -> Arguments:
        """Asks for consistency between two noisy views of the unlabelled examples."""
        (x, unlabelled), y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            views = [self(unlabelled + 0.1 * random.normal(ops.shape(unlabelled))) for _ in "ab"]
            loss = self.compute_loss(y=y, y_pred=y_pred)
            loss += ops.mean(ops.square(views[0] - views[1]))
        self._apply(tape, loss)
        return self.compute_metrics(x, y, y_pred)


PLAIN = arrays(X, TARGETS)


def with_loss(kind: type[keras.Model], **arguments: Any) -> keras.Model:
    """Returns a functional model, compiled with loss and metric."""
    return functional(kind, **{"loss": "mse", "metrics": ["mae"], **arguments})


def subclassed(kind: type[keras.Model], **arguments: Any) -> keras.Model:
    """Returns a subclassed model that is not built before `fit`."""
    model = kind()
    model.compile(**{"optimizer": sgd(), "loss": "mse", "metrics": ["mae"], **arguments})
    return model


class SharpnessAware(keras.Model):
    """Follows the gradient at weights a little uphill (https://arxiv.org/abs/2010.01412).

    The layers are those of another model, and Keras knows nothing of the predictions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([keras.Input((6,)), small_network()])
        self.climbs = tf.Variable(0.0)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Climbs, takes the gradient there, comes back and descends at a rate that decays."""
        x, y = data
        self.climbs.assign_add(1.0)
        self.optimizer.learning_rate.assign(self.optimizer.learning_rate * 0.9)
        weights = self.inner.trainable_weights
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self.inner(x))
        gradients = tape.gradient(loss, weights)
        scale = 0.05 / (tf.linalg.global_norm(gradients) + 1e-12)
        climbs = [g * scale for g in gradients]
        for weight, climb in zip(weights, climbs, strict=True):
            weight.assign_add(climb)
        with tf.GradientTape() as tape:
            outputs = self.inner(x)
            loss = self.compute_loss(x, y, outputs)
        gradients = tape.gradient(loss, weights)
        for weight, climb in zip(weights, climbs, strict=True):
            weight.assign_sub(climb)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        for metric in self.metrics:
            given = [loss] if metric.name == "loss" else [y, outputs]
            metric.update_state(*given)
        logs = {metric.name: metric.result() for metric in self.metrics}
        return {**logs, "climbs": self.climbs, "rate": self.optimizer.learning_rate}


class MasksLosses(keras.Model):
    """Leaves out the losses of some examples itself: its loss has one value for each."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Follows the mean of the losses that count."""
        x, y = data
        with tf.GradientTape() as tape:
            losses = self.loss(y, self(x, training=True))
            counts = tf.cast(y[:, 0] > 0, losses.dtype)
            loss = tf.reduce_sum(losses * counts) / tf.reduce_sum(counts)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"masked_loss": loss}


CASES = {
    "a step that is aware of sharpness": Case(lambda: subclassed(SharpnessAware), PLAIN),
    "a step that leaves out the losses of some examples": Case(
        lambda: functional(MasksLosses, loss=keras.losses.MeanSquaredError(reduction="none")), PLAIN
    ),
    "a step of one's own": Case(
        lambda: with_loss(OwnStep), arrays(X, TARGETS, sample_weight=WEIGHTS)
    ),
    "a step of one's own, eagerly": Case(lambda: with_loss(OwnStep, run_eagerly=True), PLAIN),
    "a step of one's own with its own trackers": Case(
        lambda: functional(OwnTrackers), validated(X, TARGETS)
    ),
    "optimizers, metrics and counters in containers": Case(
        lambda: functional(Holder, optimizer=keras.optimizers.SGD()), arrays(X, TARGETS)
    ),
    "a variational autoencoder without call": Case(
        lambda: subclassed(Autoencoder, optimizer=adam(), loss=None, metrics=None),
        arrays(X, None),
    ),
    "distillation": Case(lambda: compiled(Distiller(), optimizer=adam()), validated()),
    "a slow copy of the weights": Case(lambda: subclassed(SlowTeacher), PLAIN),
    "targets from an older copy": Case(lambda: subclassed(TargetNetwork), PLAIN),
    "a gradient penalty": Case(lambda: with_loss(GradientPenalty), PLAIN),
    "adversarial inputs": Case(lambda: with_loss(Adversarial), PLAIN),
    "gradients that are added up by hand": Case(lambda: with_loss(Accumulates), PLAIN),
    "weights that are moved by hand": Case(lambda: with_loss(AppliesByHand), PLAIN),
    "labelled and unlabelled examples": Case(
        lambda: with_loss(PseudoLabels), arrays((X, X[::-1]), TARGETS)
    ),
}
