"""The first step of a joiner whose state is still on its way.

The others do not wait for the state, which may be large: they compute the step without this worker,
which takes part in the collectives with nothing. When its state, that of before the step, has come,
it goes on from what the collectives have given, and is level with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.one_round import (
    Known,
    NotApartError,
    given_alone,
    needs_rows,
)

if TYPE_CHECKING:
    from hvd_elastic_keras.step.partitioned_step import PartitionedStep

Arrive = Callable[[], None]
"""Returns when the state is there, or raises `CollectiveFailedError`."""
Taken = tuple[list[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class LateStep:
    """A step in two graphs: the collectives, and what follows from them and from the state.

    Attributes:
      sums: takes part in the collectives; gives what they give, and the sum of the tails.
      apply: assigns, given these and the numbers of the step.
    """

    sums: Callable[..., tuple[list[tf.Tensor], tf.Tensor]]
    apply: Callable[..., Taken]

    @classmethod
    def of(cls, step: PartitionedStep) -> LateStep | None:
        """That of a step; None if there is none."""
        assert step.analysis
        graph = tf.function(
            lambda: given_alone(step.captured, step.analysis, step.any_rows()), autograph=False
        )
        try:
            given = graph.get_concrete_function().structured_outputs
            specs = [tf.TensorSpec(t.shape, t.dtype) for t in given]
            signature = [specs, step.tail.spec, tf.TensorSpec([None], tf.int64)]
            apply = tf.function(
                lambda *given: _applied(step, *given), input_signature=signature, autograph=False
            ).get_concrete_function()
        except NotApartError:
            return None
        return cls(step.directly(step.sums_of_all), apply)

    def __call__(self, arrive: Arrive, flat: Any, numbers: tf.Tensor) -> Taken:
        """Takes the step, which waits for the state only when it needs it."""
        results, tail = self.sums(flat, numbers)
        arrive()
        outputs, tail = self.apply(results, tail, numbers)
        return list(outputs), tail


def _applied(
    step: PartitionedStep, results: Sequence[tf.Tensor], tail: tf.Tensor, numbers: tf.Tensor
) -> Taken:
    place = step.place(numbers)
    rows, known = step.any_rows(), Known(results, tail)
    computed, outputs = step.computed(rows, place, known)
    if needs_rows(computed, outputs, rows, known):
        raise NotApartError
    return step.finished(computed, outputs, place, known)
