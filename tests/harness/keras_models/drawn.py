"""Cases assembled from named parts, for a test that draws the parts at random."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.harness.keras_models import features, losses, metrics, randomness, structures
from tests.harness.keras_models.case import (
    BATCH,
    OTHER,
    SIZE,
    TARGETS,
    WEIGHTS,
    Arguments,
    Case,
    Expectation,
    X,
    adam,
    arrays,
    dataset,
    sgd,
)
from tests.harness.keras_models.train_steps import Step

layers = keras.layers
Made = dict[str, Callable[[], Any]]

LAYERS: Made = {
    "dense": lambda: layers.Dense(5, "tanh"),
    "shared weights": lambda: keras.Sequential([shared := layers.Dense(6, "tanh"), shared]),
    "layer norm": layers.LayerNormalization,
    "group norm": lambda: layers.GroupNormalization(-1),
    "dropout": lambda: layers.Dropout(0.3),
    "seeded dropout": lambda: layers.Dropout(0.2, seed=5),
    "dropout of features": lambda: layers.Dropout(0.3, noise_shape=(1, None)),
    "gaussian noise": lambda: layers.GaussianNoise(0.2),
    "unseeded noise": lambda: randomness.Applies(randomness.noise),
    "noise in evaluation": lambda: randomness.Applies(randomness.noise, seed=3, always=True),
    "a number per example": lambda: randomness.Applies(randomness.uniform_scale),
    "one number for the batch": lambda: randomness.Applies(randomness.one_for_all, seed=8),
    "stochastic depth": lambda: randomness.StochasticDepth(0.3),
    "added mean": lambda: losses.Penalty("mean"),
    "added sum": lambda: losses.Penalty("sum"),
    "added values": lambda: losses.Penalty("per example"),
    "activity regularizer": lambda: layers.Dense(4, activity_regularizer="l2"),
    "weight regularizer": lambda: layers.Dense(4, kernel_regularizer="l1", bias_regularizer="l2"),
    "metric in a layer": metrics.InLayer,
    "moving mean": lambda: features.Centred(present=False),
    "growing penalty": features.InputIsKept,
}
OWN_RANDOM: Made = {
    "tf.random": lambda: randomness.Applies(randomness.tf_normal),
    "tf.nn.dropout": lambda: randomness.Applies(randomness.tf_dropout),
}
ACROSS: Made = {
    "batch norm of one's own": features.OwnBatchNorm,
    "moving mean with the batch": lambda: features.Centred(present=True),
}
LOSSES: Made = {
    "mse": lambda: "mse",
    "huber": lambda: keras.losses.Huber(0.4),
    "quantile": losses.Quantile,
    "function of examples": lambda: losses.per_example,
    "function of the batch": lambda: losses.mean_over_batch,
}
ACROSS_LOSSES: Made = {
    "contrast": lambda: losses.contrast,
    "root of mean": lambda: losses.root_of_mean,
    "correlation": lambda: losses.correlation,
}
METRICS: Made = {
    "mae": lambda: "mae",
    "r2": keras.metrics.R2Score,
    "root": keras.metrics.RootMeanSquaredError,
    "hits": lambda: metrics.Counts("hits"),
    "function of examples": lambda: metrics.error_of_example,
    "function of the batch": lambda: metrics.mean_of_batch,
}
OPTIMIZERS: Made = {
    "sgd": lambda: sgd(learning_rate=0.05),
    "adam": adam,
    "clipped": lambda: adam(global_clipnorm=0.3),
    "averaged": lambda: sgd(learning_rate=0.05, use_ema=True, ema_overwrite_frequency=3),
    "accumulated": lambda: sgd(learning_rate=0.05, gradient_accumulation_steps=2),
    "scheduled": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.8)
    ),
}


def _of_dataset() -> Arguments:
    return {"x": dataset(X, TARGETS, WEIGHTS).shuffle(3, seed=2)}


def _of_unequal_batches() -> Arguments:
    first, second = dataset(X[:9], TARGETS[:9]), dataset(X[9:], TARGETS[9:], batch=13)
    return {"x": first.concatenate(second)}


def _with_validation() -> Arguments:
    validation = (X[:21], TARGETS[:21], WEIGHTS[:21])
    return arrays(X, TARGETS, sample_weight=WEIGHTS, validation_data=validation)()


class Batches(structures.Batches):
    """The table's own batches, with numbers as targets."""

    def __getitem__(self, index: int) -> Any:
        """Returns one batch."""
        part = self._order[index * BATCH : (index + 1) * BATCH]
        return X[part], TARGETS[part], WEIGHTS[part]


DATA: Made = {
    "arrays": arrays(X, TARGETS),
    "one batch": arrays(X, TARGETS, batch_size=SIZE),
    "with validation": _with_validation,
    "dataset": _of_dataset,
    "unequal batches": _of_unequal_batches,
    "PyDataset": lambda: {"x": Batches(), "shuffle": False},
}


class DrawnStep(Step, keras.Model):
    """A functional model with a custom step."""


class DrawnLogs(keras.Model):
    """Adds values to the logs, computed from the batch and from metrics."""

    def train_step(self, data: Any) -> Arguments:
        """Takes Keras's own step, and adds values to its logs."""
        logs = super().train_step(data)
        return {**logs, "twice": 2 * logs["loss"], "mean": tf.reduce_mean(data[0])}


STEPS: dict[str, type[keras.Model]] = {
    "Keras's": keras.Model,
    "own step": DrawnStep,
    "own logs": DrawnLogs,
}


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The names of the parts of a case."""

    inner: tuple[str, ...]
    loss: str
    metrics: tuple[str, ...]
    optimizer: str
    step: str
    data: str
    eager: bool

    @property
    def expect(self) -> Expectation:
        """The result to expect from these parts."""
        return OTHER if any(name in OWN_RANDOM for name in self.inner) else Expectation.SAME

    @property
    def case(self) -> Case:
        """The case of these parts."""
        text = "tf.random" if self.expect is OTHER else ""
        return Case(self._model, DATA[self.data], self.expect, told=text)

    def _model(self) -> keras.Model:
        x = inputs = keras.Input((6,))
        for name in self.inner:
            x = {**LAYERS, **OWN_RANDOM, **ACROSS}[name]()(x)
        model = STEPS[self.step](inputs, layers.Dense(2)(x))
        model.compile(
            OPTIMIZERS[self.optimizer](),
            {**LOSSES, **ACROSS_LOSSES}[self.loss](),
            metrics=[METRICS[name]() for name in self.metrics],
            run_eagerly=self.eager,
        )
        return model
