"""A small classifier and its 96 examples, for many trainings of the tests."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
SIZE, BATCH = 96, 16
X = np.random.default_rng(0).normal(size=(SIZE, 6)).astype("float32")
LABELS = (X[:, 0] > 0).astype("int64") + (X[:, 1] > 0)
VALIDATION = (X[:40], LABELS[:40])
Arguments = dict[str, Any]


def sgd(**arguments: Any) -> keras.Optimizer:
    """Returns the optimizer that amplifies rounding least."""
    return keras.optimizers.SGD(**{"learning_rate": 0.1, "momentum": 0.9, **arguments})


def adam(**arguments: Any) -> keras.Optimizer:
    """Returns Adam with a large epsilon.

    Adam's quotient amplifies the rounding of small gradients.
    """
    return keras.optimizers.Adam(**{"learning_rate": 0.01, "epsilon": 1e-2, **arguments})


def compiled(model: keras.Model, **arguments: Any) -> keras.Model:
    """Compiles a model for `LABELS`."""
    defaults: Arguments = {
        "optimizer": sgd(),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }
    model.compile(**{**defaults, **arguments})
    return model


def classifier(*inner: keras.layers.Layer, **compile_arguments: Any) -> keras.Model:
    """Returns a small network for `X` and `LABELS`."""
    model = keras.Sequential(
        [keras.Input((6,)), *inner, layers.Dense(8, activation="tanh"), layers.Dense(3)]
    )
    return compiled(model, **compile_arguments)


def arrays(**arguments: Any) -> Arguments:
    """Returns arguments of `fit` on arrays, in the order of the arrays."""
    return {"x": X, "y": LABELS, "batch_size": BATCH, "shuffle": False, **arguments}


def examples(targets: Any = LABELS) -> tf.data.Dataset:
    """Returns a dataset of single examples."""
    return tf.data.Dataset.from_tensor_slices((X, targets))


class Largest(keras.Metric):
    """The largest logit so far: a state that cannot be summed up over workers."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes a batch into account."""
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self) -> Any:
        """Returns a new tensor: plain Keras shows a variable's value after the validation."""
        return self.value + 0.0
