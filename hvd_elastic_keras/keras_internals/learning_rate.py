"""The learning rate that a model trains with, and scales for it.

Callbacks do not see the scale. If the batch grows with the workers (`batch="per_worker"`), the
scale follows from the number of workers: pure numbers, at the end of this module."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.settings.training_config import LINEAR, SQRT

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


@dataclasses.dataclass(frozen=True)
class Growth:
    """How batch and learning rate follow the number of workers.

    Attributes:
      reference_batch_size: examples of the batch that the model's own learning rate belongs to.
      batch_size_per_worker: examples that each worker takes per step.
      lr_scaling: "linear", "sqrt" or "none".
      lr_warm_up_steps: steps over which a larger scale is reached.
    """

    reference_batch_size: int
    batch_size_per_worker: int
    lr_scaling: str
    lr_warm_up_steps: int

    def batch_size(self, workers: int) -> int:
        """Examples of a full step."""
        return workers * self.batch_size_per_worker

    def scale(self, workers: int) -> float:
        """Returns the final factor of the learning rate, after the warm-up.

        >>> [Growth(64, 32, rule, 0).scale(8) for rule in ("linear", "sqrt", "none")]
        [4.0, 2.0, 1.0]
        """
        ratio = self.batch_size(workers) / self.reference_batch_size
        return {LINEAR: ratio, SQRT: math.sqrt(ratio)}.get(self.lr_scaling, 1.0)

    def ramp(self, before: Ramp, workers: int, step: int) -> Ramp:
        """Returns the ramp that follows `before` if `workers` workers train from `step` on."""
        return before.towards(self.scale(workers), step, self.lr_warm_up_steps)


@dataclasses.dataclass(frozen=True)
class Ramp:
    """The scale by optimizer step: from `start` at `first_step` to `end`, `steps` steps later.

    All workers of a job hold the same ramp, so that their weights stay the same to the last bit.
    """

    start: float = 1.0
    end: float = 1.0
    first_step: int = 0
    steps: int = 0

    def at(self, step: int) -> float:
        """The scale of an optimizer step.

        >>> [Ramp(1.0, 3.0, first_step=10, steps=4).at(step) for step in (10, 11, 14, 99)]
        [1.0, 1.5, 3.0, 3.0]
        """
        done = step - self.first_step
        if done >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * done / self.steps

    def steps_left(self, step: int) -> int:
        """Steps, `step` included, that still have less than the final scale."""
        return max(0, self.first_step + self.steps - step)

    def towards(self, end: float, step: int, steps: int) -> Ramp:
        """Returns the ramp from `step` on to the scale `end`: up within `steps`, or down at once.

        >>> Ramp(1.0, 3.0, first_step=0, steps=4).towards(2.0, step=1, steps=4)
        Ramp(start=1.5, end=2.0, first_step=1, steps=4)
        """
        if end == self.end:
            return self
        now = self.at(step)
        if end <= now or steps == 0:
            return Ramp(end, end, step, 0)
        return Ramp(now, end, step, steps)
