"""Collectives between the workers of a step, whether they have rows or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf


class Collectives(Protocol):
    """The collectives of a step. All workers make the same calls."""

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        """Returns the sums over all workers of tensors that travel together.

        Args:
          rounded: whether the tensors travel in 16 bits, if a type of 16 bits was chosen.
        """

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the tensors of all workers, one after the other, along the first axis."""

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Returns the "Max", "Min", "All" or "Any" over all workers."""


Tail = Callable[[Sequence[tf.Tensor]], tf.Tensor]
"""Makes the tensor that travels with the last sums, shape [n], float32. It receives the tensors
that have to be computed before."""
MOST_CHOSEN = 1 << 14
"""Tensors with fewer elements are chosen element by element: a branch takes long to trace."""


class WorkerCollectives:
    """The collectives of a worker that may have no rows, and may be alone.

    Results of a worker without rows do not count. A worker that is alone leaves collectives out:
    each takes 0.6 ms even then. Both conditions may change from step to step without a new trace.

    Args:
      has_rows: whether the worker has rows.
      has_others: whether there are other workers.

    Attributes:
      results: results of collectives, and of loops and branches that contain collectives.
      asserts: tells whether an assertion is made, given the number of rounds of collectives before
        it.
    """

    def __init__(
        self,
        collectives: Collectives,
        has_rows: tf.Tensor | bool = True,
        has_others: tf.Tensor | bool = True,
    ) -> None:
        self._collectives = collectives
        self._has_rows = has_rows
        self._has_others = has_others
        self.asserts: Callable[[int], bool] = lambda rounds: True
        self.results: list[tf.Tensor] = []

    def tail(self, make: Tail, before: Sequence[tf.Tensor]) -> tf.Tensor:
        """Makes the tensor that travels with the last sums, once `before` is computed."""
        return make(before)

    def summed(
        self,
        tensors: list[tf.Tensor],
        name: str,
        tail: tf.Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> list[tf.Tensor]:
        """Sums tensors over the workers. A worker without rows adds only its tail.

        Args:
          tail: a tensor that travels with the others.
          rounded: see `Collectives`; not used with a tail.

        Returns:
          The sums of the tensors. The sum of the tail follows, if there is one.
        """
        beside = [] if tail is None else [tail]

        def of_all(given: list[tf.Tensor]) -> list[tf.Tensor]:
            return self._collectives.summed([*given, *beside], name, rounded=rounded)

        if all((t.shape.num_elements() or MOST_CHOSEN) < MOST_CHOSEN for t in tensors):
            counted = [self._if_rows(t) for t in tensors]
            sums = self._or_alone(lambda: of_all(counted), [*counted, *beside])
        elif self._has_rows is True:
            sums = self._or_alone(lambda: of_all(tensors), [*tensors, *beside])
        else:
            # Choosing by element would copy all gradients; choosing one by one would delay them.
            sums = tf.switch_case(
                tf.where(self._has_others, tf.where(self._has_rows, 1, 2), 0),
                [
                    lambda: [*tensors, *beside],
                    lambda: of_all(tensors),
                    # Not of constants: TensorFlow would run the collective once, when it optimises.
                    lambda: of_all([self._if_rows(t) for t in tensors]),
                ],
            )
        sums = [sums] if tf.is_tensor(sums) else list(sums)
        self.results += sums[: len(tensors)]
        return sums

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Gathers the rows of all workers. A worker without rows gives none."""
        given = tensor[: self._if_rows(tf.shape(tensor)[0])]
        whole = self._or_alone(lambda: self._collectives.gathered(given, name), given)
        self.results.append(whole)
        return whole

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Finds an extreme over all workers. A worker without rows gives a neutral value."""
        given = self._if_rows(tensor, neutral(tensor.dtype, kind))
        found = self._or_alone(lambda: self._collectives.extreme(given, kind, name), given)
        self.results.append(found)
        return found

    def _if_rows(self, counted: tf.Tensor, otherwise: Any = 0) -> tf.Tensor:
        if self._has_rows is True:
            return counted
        return tf.where(self._has_rows, counted, tf.cast(otherwise, counted.dtype))

    def _or_alone(self, with_others: Callable[[], Any], alone: Any) -> Any:
        if self._has_others is True:
            return with_others()
        return tf.cond(self._has_others, with_others, lambda: alone)

    def outermost(self, graph: Any) -> list[tf.Tensor]:
        """Returns the `results` in this graph. All of them must be computed before its end."""
        return [t for t in self.results if t.graph is graph]


def neutral(dtype: tf.DType, kind: str) -> Any:
    """Returns a value that does not change an extreme."""
    if kind in ("All", "Any"):
        return kind == "All"
    if dtype.is_floating:
        return tf.constant(float("-inf") if kind == "Max" else float("inf"), dtype)
    return tf.constant(dtype.min if kind == "Max" else dtype.max, dtype)
