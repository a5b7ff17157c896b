"""The sums of a step over all workers: which tensors travel together, and when.

Tensors that are wanted at the same time travel together, those of each type apart. In the last
round, large ones are sent as soon as they are computed. The tail travels with the last sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.collectives import PackedTensors, Tail, WorkerCollectives
from hvd_elastic_keras.step.partition.gradients import in_order_of_making, parts_of
from hvd_elastic_keras.step.partition.plan import Plan

Shapes = Mapping[str, tf.TensorShape]
"""What all workers know of the shapes of tensors, by their names."""
Sums = dict[str, Any]
"""Sums by the names of the tensors."""


class StepSums:
    """The sums of one step, and the names of all its collectives.

    Args:
      prefix: begins the names of the collectives.
      rounded: names of the tensors that travel in 16 bits.
      tail: makes the tensor that travels with the last sums.

    Attributes:
      tail: the sum of the tails of all workers, shape [n], float32, once it is known.
      num_early: calls of collectives, so far, that may end before the whole part is computed.
      ended: whether variables may be assigned, so that no collective may follow.
    """

    def __init__(
        self,
        collectives: WorkerCollectives,
        prefix: str,
        rounded: Collection[str] = (),
        tail: Tail | None = None,
    ) -> None:
        self._collectives = collectives
        self._prefix = prefix
        self._rounded = rounded
        self._own_tail = tail
        self._num_names = 0
        self.tail: Any = None
        self.num_early = 0
        self.ended = False

    def name(self, what: str, *, is_early: bool = True) -> str:
        """Returns a collective's name: the same on all workers, for any number of workers."""
        if self.ended:
            raise RuntimeError("a collective follows the first assignment")
        self._num_names += 1
        self.num_early += is_early
        return f"{self._prefix}_{what}_{self._num_names}"

    def of_round(
        self, dtype: str, parts: Mapping[str, Any], shapes: Shapes, *, may_round: bool
    ) -> Sums:
        """Returns the sums of tensors of one type that are wanted at the same time.

        Args:
          parts: what this worker contributes to each sum.
          may_round: whether gradients may be among them, which may travel in 16 bits.
        """
        rounded = self._rounded_of(parts) if may_round else []
        return self._summed(f"sum_{dtype}", parts, shapes, rounded)

    def of_last_round(self, plan: Plan, parts: Mapping[str, Any], shapes: Shapes) -> Sums:
        """Returns the sums of the last round. Large tensors are sent as soon as they are computed.

        Tensors that are sent with the tail or after it wait until everything is computed.

        Args:
          plan: says in which order the tensors are computed.
        """
        found: Sums = {}
        ordered = in_order_of_making(plan, parts)
        large = self._rounded or parts.keys()
        bytes_of = [_num_bytes(shapes[n], parts[n].dtype) if n in large else 0 for n in ordered]
        *early, _ = parts_of(bytes_of)
        for group in early:
            names = [ordered[i] for i in group]
            group_parts = {name: parts[name] for name in names}
            found |= self._summed("early_sum", group_parts, shapes, self._rounded_of(names))
        if self._own_tail is None:
            last = {name: parts[name] for name in parts if name not in found}
            return found | self._summed("sum_float32", last, shapes, self._rounded_of(last))
        tail = self._collectives.tail(self._own_tail, list(parts.values()))
        if rounded := self._rounded_of(name for name in parts if name not in found):
            with tf.control_dependencies([tail]):
                name = self.name("sum_float32_half", is_early=False)
                given = {n: parts[n] for n in rounded}
                found |= self._packed(name, given, shapes, rounded=True)
        exact = {n: part for n, part in parts.items() if n not in found}
        name = self.name("sum_float32", is_early=False)
        return found | self._packed(name, exact, shapes, tail)

    def of_tail(self, before: Sequence[Any]) -> None:
        """Sums the tails if they have not travelled with other sums.

        Args:
          before: everything that has to be computed before.
        """
        if self._own_tail is not None and self.tail is None:
            name = self.name("tail", is_early=False)
            made = self._collectives.tail(self._own_tail, before)
            (self.tail,) = self._collectives.summed([], name, made)

    def _rounded_of(self, names: Iterable[str]) -> list[str]:
        """Returns the names of sums that travel in 16 bits, in the given order."""
        return [name for name in names if name in self._rounded]

    def _summed(
        self, what: str, parts: Mapping[str, Any], shapes: Shapes, rounded: Sequence[str]
    ) -> Sums:
        """Returns the sums of tensors by their names. Rounded tensors travel separately."""
        found: Sums = {}
        if rounded:
            given = {n: parts[n] for n in rounded}
            found |= self._packed(self.name(f"{what}_half"), given, shapes, rounded=True)
        exact = {n: part for n, part in parts.items() if n not in found}
        return found | self._packed(self.name(what), exact, shapes) if exact else found

    def _packed(
        self,
        name: str,
        parts: Mapping[str, Any],
        shapes: Shapes,
        tail: Any = None,
        *,
        rounded: bool = False,
    ) -> Sums:
        """Returns the sums of tensors that travel together. Small ones travel as one tensor."""
        packed = PackedTensors(list(parts.values()), [shapes[n] for n in parts])
        sums = self._collectives.summed(packed.tensors, name, tail, rounded=rounded)
        if tail is not None:
            self.tail = sums.pop()
        return dict(zip(parts, packed.apart(sums), strict=True))


def _num_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """Returns the bytes of a tensor. If unknown, they count as 0, so it waits for the last part."""
    return int(shape.num_elements() or 0) * int(dtype.size)
