"""The learning rate that a model trains with, and a scale for it that callbacks do not see."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

METHOD = "_get_current_learning_rate"
"""Private to Keras, the same from 3.8 to 3.15: all optimizers read their rate through it."""


def learning_rate_of(model: keras.Model) -> float | None:
    """Returns `model.optimizer.learning_rate` as a number; None if there is no single number.

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> learning_rate_of(model)
    >>> model.compile(optimizer=keras.optimizers.SGD(0.25))
    >>> learning_rate_of(model)
    0.25
    """
    try:
        rate = float(model.optimizer.learning_rate)
    except (AttributeError, TypeError, ValueError):
        return None  # not compiled, or a user's own optimizer with another kind of learning rate
    return rate if math.isfinite(rate) else None


@contextlib.contextmanager
def scaled(optimizers: Iterable[Any], scale: tf.Variable) -> Iterator[None]:
    """Multiplies the learning rate that `optimizer.apply` sees while this lasts.

    `optimizer.learning_rate` keeps the value that the user, a schedule or a callback has set.
    Weight decay is multiplied, too, where Keras multiplies it by the learning rate.

    Args:
      optimizers: optimizers. Inner ones, as in a `LossScaleOptimizer`, are included.
      scale: shape [], float32; read by the graph in each step.
    """
    replaced = [o for optimizer in optimizers for o in _with_inner(optimizer)]
    for optimizer in replaced:
        # Bypass Keras, which would track it as an attribute.
        object.__setattr__(optimizer, METHOD, _scaled(getattr(optimizer, METHOD), scale))
    try:
        yield
    finally:
        for optimizer in replaced:
            object.__delattr__(optimizer, METHOD)


def _scaled(rate: Callable[[], Any], scale: tf.Variable) -> Callable[[], tf.Tensor]:
    def product() -> tf.Tensor:
        value = keras.ops.convert_to_tensor(rate())
        return value * tf.cast(scale.read_value(), value.dtype)

    return product


def _with_inner(optimizer: Any) -> Iterator[Any]:
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    several = getattr(optimizer, "_inner_optimizers", ())  # of a `MultiOptimizer`
    for other in (*several, *((inner,) if inner is not None else ())):
        yield from _with_inner(other)
