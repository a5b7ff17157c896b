"""What a case of the table defines, and the examples that many cases train on."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.harness import small_classifier

adam, sgd, compiled = small_classifier.adam, small_classifier.sgd, small_classifier.compiled
Arguments = dict[str, Any]
SIZE, BATCH = 44, 16
"""Three steps in an epoch, of which the last one has 12 examples."""
_random = np.random.default_rng(0)
X = _random.normal(size=(SIZE, 6)).astype("float32")
LABELS = (X[:, 0] > 0).astype("int64") + (X[:, 1] > 0)
BINARY = (X[:, :1] + X[:, 1:2] > 0).astype("float32")
TARGETS = np.tanh(X[:, :2] - X[:, 2:4]).astype("float32")
ONE_HOT = np.eye(3, dtype="float32")[LABELS]
WEIGHTS = _random.uniform(0.2, 1.8, SIZE).astype("float32")
CLASS_WEIGHT = {0: 2.0, 1: 0.5, 2: 1.0}
SERIES = _random.normal(size=(SIZE, 6, 3)).astype("float32")
IMAGES = _random.uniform(0, 1, (SIZE, 8, 8, 1)).astype("float32")
LENGTHS = _random.integers(2, 7, SIZE)
TOKENS = np.where(np.arange(6) < LENGTHS[:, None], _random.integers(1, 12, (SIZE, 6)), 0)
"""Token numbers, padded with 0 at the end."""


class Expectation(enum.Enum):
    """How a training with `ElasticCallback` relates to plain `fit`."""

    SAME = "equal to plain fit for any workers"
    OTHER = "another result, told of: the same for any workers"


SAME, OTHER = Expectation


@dataclasses.dataclass(frozen=True)
class Case:
    """One user's script.

    Attributes:
      model: makes the compiled model; it is always the same one after `set_random_seed`.
      data: makes the arguments of `fit`, anew for each call.
      expect: how the result compares with plain `fit`'s.
      told: a regular expression that must match the output before the first step; empty if there
        must be no output.
      surplus: whether Keras starts one step too many at the end of data of unknown length. That
        step counts in the optimizer's iterations.
      tolerance: the relative and the absolute tolerance.
    """

    model: Callable[[], keras.Model]
    data: Callable[[], Arguments]
    expect: Expectation = SAME
    told: str = ""
    surplus: bool = False
    tolerance: float = 1e-5


def arrays(x: Any = X, y: Any = LABELS, **arguments: Any) -> Callable[[], Arguments]:
    """Returns a maker of arguments for `fit` on arrays, in the order of the arrays."""
    given = {"x": x, "y": y, "batch_size": BATCH, "shuffle": False, **arguments}
    return lambda: dict(given)


def validated(x: Any = X, y: Any = LABELS, **arguments: Any) -> Callable[[], Arguments]:
    """The same, with validation on the first examples."""

    def front(values: Any) -> Any:
        return keras.tree.map_structure(lambda v: v[:19], values)

    return arrays(x, y, validation_data=(front(x), front(y)), validation_batch_size=8, **arguments)


def dataset(*parts: Any, batch: int = BATCH) -> tf.data.Dataset:
    """Returns batches of examples, each a tuple of these parts."""
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]).batch(batch)


def classifier(*inner: keras.layers.Layer, shape: Any = (6,), **arguments: Any) -> keras.Model:
    """Returns a model of some layers, and behind them a classifier of `LABELS`."""
    stack = [keras.Input(shape), *inner, keras.layers.Dense(3)]
    return compiled(keras.Sequential(stack), **arguments)


def regressor(*inner: keras.layers.Layer, shape: Any = (6,), **arguments: Any) -> keras.Model:
    """Returns a model of some layers, and behind them two numbers per example."""
    stack = [keras.Input(shape), *inner, keras.layers.Dense(2)]
    return compiled(keras.Sequential(stack), **{"loss": "mse", "metrics": ["mae"], **arguments})
