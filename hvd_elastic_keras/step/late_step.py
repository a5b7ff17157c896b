"""The first step of a joiner whose state is still on its way.

The others do not wait for the state, which may be large: they compute the step without this worker,
which takes part in the collective with nothing. When its state, that of before the step, has come,
it applies the same sums as they, and is level with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hvd_elastic_keras.step.micro_batches.traced import Tensors

if TYPE_CHECKING:
    from hvd_elastic_keras.step.atomic import AtomicStep

Arrive = Callable[[], None]
"""Returns when the state is there, or raises `CollectiveFailedError`."""
Taken = tuple[dict[str, tf.Tensor], tf.Tensor]


class LateStep:
    """A step in two graphs: the collective, and what depends on the state.

    Args:
      step: that is taken so.
      signature: of its arguments.
    """

    def __init__(self, step: AtomicStep, signature: list[Any]) -> None:
        self._step = step
        self._sums = tf.function(self._sums_of_all, input_signature=signature, autograph=False)
        self._apply = tf.function(self._applied, autograph=False)

    def after(self, arrive: Arrive) -> Callable[[Tensors, tf.Tensor], Taken]:
        """The step, which waits for the state only when it needs it."""

        def take(data: Tensors, numbers: tf.Tensor) -> Taken:
            sums, tail = self._sums(data, numbers)
            arrive()
            return self._apply(sums, tf.constant(False)), tail

        return take

    def warm_up_rest(self) -> None:
        """Leaves warm what a step does that is not stopped; nothing is assigned."""
        specs, _ = self._sums.get_concrete_function().structured_outputs
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            self._apply([tf.zeros(spec.shape, spec.dtype) for spec in specs], tf.constant(True))

    def _sums_of_all(self, data: Tensors, numbers: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        total, tail, before = self._step.total(data, numbers)
        with tf.control_dependencies([tf.group(*before)]):
            return [tf.identity(t) for t in total.tensors], tf.identity(tail)

    def _applied(self, sums: Tensors, stop: tf.Tensor) -> dict[str, tf.Tensor]:
        micro_batch = self._step.micro_batch
        goes_on = tf.debugging.assert_equal(stop, False, message="a trial: nothing is assigned")
        with tf.control_dependencies([goes_on]):
            return micro_batch.logs(self._step.apply(micro_batch.accumulated(sums)))
