"""How the workers of a step talk to each other, whether they have rows or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf


class Collectives(Protocol):
    """How the workers of a step talk to each other. All of them make the same calls."""

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        """The sums over all workers, of tensors that travel together.

        Args:
          rounded: whether they travel in 16 bits, if anything does.
        """

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """The tensors of all workers one after the other, along the first axis."""

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """The "Max", "Min", "All" or "Any" over all workers."""


class IfOthers:
    """Collectives that are left out where there is no other worker: each takes 0.6 ms even then.

    Args:
      has_others: whether there is one; a tensor, so that nothing is traced anew.
    """

    def __init__(self, collectives: Collectives, has_others: tf.Tensor) -> None:
        self._collectives = collectives
        self._has_others = has_others

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        """Alone, the tensors."""
        sums = tf.cond(
            self._has_others,
            lambda: self._collectives.summed(tensors, name, rounded=rounded),
            lambda: tensors,
        )
        return [sums] if tf.is_tensor(sums) else list(sums)

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Alone, the tensor."""
        return tf.cond(
            self._has_others,
            lambda: self._collectives.gathered(tensor, name),
            lambda: tensor,
        )

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Alone, the tensor."""
        return tf.cond(
            self._has_others,
            lambda: self._collectives.extreme(tensor, kind, name),
            lambda: tensor,
        )


Tail = Callable[[Sequence[tf.Tensor]], tf.Tensor]
"""Makes what travels with the last sums, shape [n], float32; given what has to be there before."""
MOST_CHOSEN = 1 << 14
"""Elements of a tensor that are chosen one by one: a condition takes long to trace."""


class OfRows:
    """The collectives of a worker that may have no rows: what it computes then does not count.

    Which it is may change from step to step, and nothing is traced anew for it.

    Attributes:
      results: what collectives have given, and the loops and branches in which some stand.
      asserts: whether assertions are made that so many rounds of collectives come before.
    """

    def __init__(self, collectives: Collectives, has_rows: tf.Tensor) -> None:
        self._collectives = collectives
        self._has_rows = has_rows
        self.asserts: Callable[[int], bool] = lambda rounds: True
        self.results: list[tf.Tensor] = []

    def tail(self, make: Tail, before: Sequence[tf.Tensor]) -> tf.Tensor:
        """What travels with the last sums, made when `before` is there."""
        return make(before)

    def summed(
        self,
        tensors: list[tf.Tensor],
        name: str,
        tail: tf.Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> list[tf.Tensor]:
        """Without rows, adds nothing to the tensors, but to the tail.

        Args:
          tail: what travels with them.
          rounded: see `Collectives`; not with a tail.

        Returns:
          The sums of the tensors; after them that of the tail, if there is one.
        """
        beside = [] if tail is None else [tail]
        if all((t.shape.num_elements() or MOST_CHOSEN) < MOST_CHOSEN for t in tensors):
            counted = [tf.where(self._has_rows, t, tf.zeros_like(t)) for t in tensors]
        else:  # a choice by element would copy all gradients
            counted = tf.cond(
                self._has_rows,
                lambda: tensors,
                lambda: [tf.raw_ops.ZerosLike(x=t) for t in tensors],
            )
        counted = [counted] if tf.is_tensor(counted) else counted
        sums = self._collectives.summed([*counted, *beside], name, rounded=rounded)
        self.results += sums[: len(tensors)]
        return sums

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Without rows, gives none."""
        count = tf.where(self._has_rows, tf.shape(tensor)[0], 0)
        whole = self._collectives.gathered(tensor[:count], name)
        self.results.append(whole)
        return whole

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """Without rows, gives what is no extreme."""
        least = tf.cast(tf.fill(tf.shape(tensor), neutral(tensor.dtype, kind)), tensor.dtype)
        counted = tf.where(self._has_rows, tensor, least)
        found = self._collectives.extreme(counted, kind, name)
        self.results.append(found)
        return found

    def outermost(self, graph: Any) -> list[tf.Tensor]:
        """Those of `results` that are in this graph: all of them have to be there at its end."""
        return [t for t in self.results if t.graph is graph]


def neutral(dtype: tf.DType, kind: str) -> Any:
    """What does not change an extreme."""
    if kind in ("All", "Any"):
        return kind == "All"
    if dtype.is_floating:
        return tf.constant(float("-inf") if kind == "Max" else float("inf"), dtype)
    return tf.constant(dtype.min if kind == "Max" else dtype.max, dtype)
