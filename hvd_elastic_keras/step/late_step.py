"""The first step of a new worker that is still receiving its state.

The other workers do not wait for the state, which may be large. They compute the step without the
new worker, which takes part in the collectives but contributes nothing. The new worker receives
the state from before the step. It then finishes the step with the results of the collectives, and
is level with the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.one_round import (
    Known,
    NotOneRoundError,
    PartsNotSeparableError,
    needs_rows,
)
from hvd_elastic_keras.step.shared_step import SharedStep

Arrive = Callable[[], None]
"""Returns when the state is there, or raises `CollectiveFailedError`."""
Taken = tuple[list[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class LateStep:
    """A step in two graphs: the collectives, and the rest, which needs the worker's state.

    Attributes:
      sums: takes part in the collectives; returns their results and the sum of the tails.
      apply: assigns the variables, given these results, the sum and the numbers of the step.
    """

    sums: Callable[..., tuple[list[tf.Tensor], tf.Tensor]]
    apply: Callable[..., Taken]

    @classmethod
    def of(cls, step: SharedStep) -> LateStep | None:
        """Returns the two graphs of a step; None if the step cannot be split in this way."""
        assert step.without_rows  # planned before a graph is traced that needs it
        try:
            sums = step.compiled(step.sums_of_all).get_concrete_function()
            results, _ = sums.structured_outputs
            specs = [tf.TensorSpec(t.shape, t.dtype) for t in results]
            signature = [specs, step.tail.spec, tf.TensorSpec([None], tf.int64)]
            apply = tf.function(
                lambda *given: _applied(step, *given), input_signature=signature, autograph=False
            ).get_concrete_function()
        except (NotOneRoundError, PartsNotSeparableError):
            return None
        return cls(sums, apply)

    def __call__(self, arrive: Arrive, flat: Any, numbers: tf.Tensor) -> Taken:
        """Takes the step. It waits for the state only after the collectives."""
        results, tail = self.sums(flat, numbers)
        arrive()
        outputs, tail = self.apply(results, tail, numbers)
        return list(outputs), tail


def _applied(
    step: SharedStep, results: Sequence[tf.Tensor], tail: tf.Tensor, numbers: tf.Tensor
) -> Taken:
    place = step.place(numbers)
    rows, known = step.any_rows(), Known(results, tail)
    computed, outputs = step.computed(rows, place, known, step.without_rows)
    if not known.are_used_up() or needs_rows(computed, outputs, rows, known):
        raise PartsNotSeparableError
    return step.finished(computed, outputs, place, known)
