"""The terms of a loss: those that are sums over examples are weighed as sums.

The gradients of micro-batches are averaged, weighted by examples, which is right for a mean over
examples. A sum (`add_loss(ops.sum(…))`, an activity regularizer, `reduction="sum"`) has to be
added. It is multiplied by examples of the step / examples of the micro-batch where it arises; then
the weighted average of it is the sum. `step/trials/cut_trial.py` finds out which terms are sums.

A term is what one call of a `keras.Loss` or of `Layer.add_loss` gives. Terms are numbered in the
order of these calls, which is the same in every trace of a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.keras_internals.replaced import replaced
from hvd_elastic_keras.step.micro_batches.rows import Rows


class LossTerms:
    """The terms that arise while a step is traced or runs.

    Args:
      rows: of the micro-batch.
      sums: numbers of the terms that are sums over the examples.
    """

    def __init__(self, rows: Rows, sums: Collection[int]) -> None:
        self._scale = 1.0 / rows.weight
        self._sums = sums
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._depth = 0
        self._count = 0
        self.names: dict[int, str] = {}
        """What people call a term."""
        self._values: dict[int, tf.Tensor] = {}

    @property
    def values(self) -> tf.Tensor:
        """Shape [terms], float32: each as given, its elements added up; NaN where unknown."""
        unknown = tf.constant(float("nan"))
        return tf.stack([self._values.get(i, unknown) for i in range(self._count)] or [unknown])

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Sees each term that arises for a while, and weighs the sums."""
        with (
            replaced(keras.Layer, "add_loss", self._add_loss),
            replaced(keras.Loss, "__call__", self._loss),
        ):
            yield

    def _add_loss(self, original: Any, layer: Any, loss: Any) -> None:
        losses = tf.nest.flatten(loss) if isinstance(loss, list | tuple | dict) else [loss]
        original(layer, [self._weighed(value, f"add_loss of {layer.name}") for value in losses])

    def _loss(self, original: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        self._depth += 1
        try:
            value = original(loss, *args, **kwargs)
        finally:
            self._depth -= 1
        return value if self._depth else self._weighed(value, f"loss {loss.name}")

    def _weighed(self, value: Any, name: str) -> Any:
        number, self._count = self._count, self._count + 1
        self.names[number] = name
        if not isinstance(value, tf.Tensor):
            value = tf.convert_to_tensor(value)
        if self._graph is None or value.graph is self._graph:  # else it cannot be looked at
            self._values[number] = tf.reduce_sum(tf.cast(value, tf.float32))
        return value * tf.cast(self._scale, value.dtype) if number in self._sums else value
