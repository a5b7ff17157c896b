"""Horovod's `DistributedOptimizer` for Keras 3: averages the gradients of all workers.

In the user's own loop (or `train_on_batch`), `apply` averages the gradients. In `fit`, the atomic
steps of this package have averaged them already, and the optimizer works unchanged.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import horovod.tensorflow
import keras
import tensorflow as tf

from hvd_elastic_keras.api.training import OwnSteps
from hvd_elastic_keras.common import patches
from hvd_elastic_keras.common.errors import ConfigurationError

_numbers = itertools.count()
"""Numbers of distributed optimizers. They agree in all processes, which run the same script."""


class Distributed:
    """A base class that `distributed` adds to the class of an optimizer."""

    _elastic_number: int

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Averages the gradients over all workers, unless an atomic step has, and applies them."""
        apply = super().apply  # type: ignore[misc]
        if OwnSteps.depth:
            return apply(grads, trainable_variables)
        averaged = [
            None if g is None else _average(g, f"distributed_{self._elastic_number}.{i}")
            for i, g in enumerate(grads)
        ]
        return apply(averaged, trainable_variables)


def distributed(optimizer: Any) -> Any:
    """Makes `apply` average gradients over all workers. Returns the same optimizer."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            f"hvd.DistributedOptimizer got a {type(optimizer).__module__}."
            f"{type(optimizer).__name__}, expected a keras.optimizers.Optimizer of Keras 3."
        )
    if not is_distributed(optimizer):
        object.__setattr__(optimizer, "_elastic_number", next(_numbers))
        optimizer.__class__ = _distributed_class(optimizer.__class__)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Returns whether `distributed` has changed it, or its inner optimizer (of loss scaling)."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return isinstance(optimizer, Distributed) or (inner is not None and is_distributed(inner))


@functools.cache
def _distributed_class(kind: type[Any]) -> type[Any]:
    # It has the name and module of the original, because Keras saves and loads it under them.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (Distributed, kind), names)


def _average(gradient: Any, name: str) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        gradient = tf.convert_to_tensor(gradient)
    return horovod.tensorflow.allreduce(gradient, op=horovod.tensorflow.Average, name=name)


class LearningRate:
    """`optimizer.lr`, as Keras 2 had it: the variable behind `optimizer.learning_rate`."""

    def __get__(self, optimizer: Any, kind: Any = None) -> Any:
        if optimizer is None:
            return self
        own = vars(optimizer).get("lr")
        rate = optimizer.learning_rate if own is None else own
        return rate.value if isinstance(rate, keras.Variable) else rate

    def __set__(self, optimizer: Any, value: Any) -> None:
        if type(optimizer).__module__.partition(".")[0] == "keras":
            optimizer.learning_rate = value
        else:  # an optimizer of the user's own may mean something else by `lr`
            vars(optimizer)["lr"] = value


def provide_lr() -> None:
    """Gives all optimizers an attribute `lr`, for scripts written for Keras 2."""
    if not hasattr(keras.optimizers.Optimizer, "lr"):
        patches.install(keras.optimizers.Optimizer, "lr", LearningRate(), "the name of Keras 2")
