"""A step whose collectives all stand in one round, in two parts: before the round, and after it.

So its rows may be computed in pieces, one after the other, whose sums go through the collectives;
and a worker whose variables are on their way may take part in the round before they are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.captured_step import CapturedStep
from hvd_elastic_keras.step.partition.collectives import Collectives, OfRows, Tail
from hvd_elastic_keras.step.partition.execution import Part, PartialStep
from hvd_elastic_keras.step.partition.plan import Analysis

SUM, ROWS = "sum", "rows"
EXTREMES: dict[str, Callable[[Any, Any], Any]] = {
    "Max": tf.maximum,
    "Min": tf.minimum,
    "All": tf.logical_and,
    "Any": tf.logical_or,
}


class NotOneRoundError(Exception):
    """A collective waits for another one, stands in a loop, or what follows needs the rows."""


class NotApartError(Exception):
    """What follows the collectives needs more than these: rows, or a collective in a loop."""


@dataclasses.dataclass(frozen=True)
class Given:
    """What a worker gives to a collective: to a sum, to rows of all, or to an extreme by name."""

    kind: str
    tensor: Any


class _Noted:
    """Notes what is given, and lets the step go on with anything of that form."""

    def __init__(self) -> None:
        self.given: list[Given] = []

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        self.given += [Given(SUM, t) for t in tensors]
        return [_apart(t) for t in tensors]

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        self.given.append(Given(ROWS, tensor))
        return _apart(tensor)

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        self.given.append(Given(kind, tensor))
        return _apart(tensor)


def _after_the_round(rounds: int) -> bool:
    """What comes before has been asserted where it was computed."""
    return rounds > 0


class Instead(OfRows):
    """Collectives to which other tensors are given than those that the step has.

    Args:
      given: in the order of `OneRound.before`.
    """

    def __init__(
        self,
        collectives: Collectives,
        has_rows: tf.Tensor,
        has_others: tf.Tensor,
        given: Sequence[Given],
    ) -> None:
        super().__init__(collectives, has_rows, has_others)
        self.asserts = _after_the_round
        self._all = [g.tensor for g in given]
        self._given = iter(self._all)

    def tail(self, make: Tail, before: Sequence[tf.Tensor]) -> tf.Tensor:
        """See `OfRows`; it does not wait for the tensors that the step has."""
        return super().tail(make, self._all or before)

    def summed(
        self,
        tensors: list[tf.Tensor],
        name: str,
        tail: tf.Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> list[tf.Tensor]:
        """See `OfRows`."""
        given = [next(self._given) for _ in tensors]
        return super().summed(given, name, tail, rounded=rounded)

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """See `OfRows`."""
        return super().gathered(next(self._given), name)

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """See `OfRows`."""
        return super().extreme(next(self._given), kind, name)


class Known(OfRows):
    """No collectives: what they would give is there already.

    Args:
      results: in the order of `OneRound.before`.
      tail: the sum of the tails.
    """

    def __init__(self, results: Sequence[tf.Tensor], tail: tf.Tensor) -> None:
        self.results = list(results)
        self.asserts = _after_the_round
        self._left = iter(results)
        self._tail = tail

    def tail(self, make: Tail, before: Sequence[tf.Tensor]) -> tf.Tensor:
        """See `OfRows`; it is not made again."""
        return self._tail

    def summed(
        self,
        tensors: list[tf.Tensor],
        name: str,
        tail: tf.Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> list[tf.Tensor]:
        """See `OfRows`."""
        sums = [tf.ensure_shape(next(self._left), t.shape) for t in tensors]
        return sums if tail is None else [*sums, self._tail]

    def gathered(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """See `OfRows`."""
        return tf.ensure_shape(next(self._left), [None, *tensor.shape[1:]])

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """See `OfRows`."""
        return tf.ensure_shape(next(self._left), tensor.shape)


MARK = "elastic_not_exchanged"


def _apart(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, marked: what is given must not follow from it."""
    return tf.identity(tensor, name=MARK)


class OneRound:
    """The two parts of a step.

    Raises:
      NotOneRoundError: it has no such parts.
    """

    def __init__(self, captured: CapturedStep, analysis: Analysis) -> None:
        self._captured = captured
        self._analysis = analysis
        self.leaves = captured.leaves
        if analysis.num_rounds > 1 or any(c.in_loop for c in analysis.collectives):
            raise NotOneRoundError

    def before(self, rows: Sequence[Any], part: Part, number: Any) -> list[Given]:
        """What a worker with these rows gives to the round of a step with this number."""
        noted = _Noted()
        everybody = OfRows(noted)
        everybody.asserts = lambda rounds: rounds == 0
        PartialStep(self._captured, self._analysis, part, everybody).compute(rows, number)
        graph = tf.compat.v1.get_default_graph()
        if any(g.tensor.graph is not graph for g in noted.given):
            raise NotOneRoundError
        if _reaches([g.tensor for g in noted.given], lambda op: MARK in op.name, ()):
            raise NotOneRoundError
        return noted.given


def results_of(given: Sequence[Given], collectives: OfRows, name: str) -> list[tf.Tensor]:
    """What the collectives give, other than sums; the names of these begin with `name`."""
    return [
        collectives.gathered(one.tensor, f"{name}_rows_{i}")
        if one.kind == ROWS
        else collectives.extreme(one.tensor, one.kind, f"{name}_extreme_{i}")
        for i, one in enumerate(given)
    ]


def given_alone(captured: CapturedStep, analysis: Analysis, rows: Sequence[Any]) -> list[tf.Tensor]:
    """What a worker gives to the collectives, in their order; for the form of the tensors.

    Raises:
      NotApartError: a collective stands in a loop or branch.
    """
    noted = _Noted()
    part = Part(tf.constant(0), tf.constant(1), tf.constant(2), tf.constant(True))
    collectives = OfRows(noted)
    collectives.asserts = lambda rounds: False
    PartialStep(captured, analysis, part, collectives).compute(rows)
    tensors = [g.tensor for g in noted.given]
    if any(t.graph is not tf.compat.v1.get_default_graph() for t in tensors):
        raise NotApartError
    return [_of_any_length(g) for g in noted.given]


def _of_any_length(given: Given) -> tf.Tensor:
    """With what is known of the result of its collective."""
    if given.kind != ROWS:
        return given.tensor
    shape = tf.TensorShape([None, *given.tensor.shape[1:]])
    return tf.compat.v1.placeholder_with_default(given.tensor, shape)


def needs_rows(
    step: PartialStep,
    outputs: Sequence[Any],
    rows: Sequence[Any],
    collectives: OfRows,
    *,
    but_shapes: bool = False,
) -> bool:
    """Whether what a step comes to needs a worker's rows for anything but its collectives.

    Args:
      rows: that `step` was given.
      outputs: that `step` has returned.
      collectives: through which it has gone.
      but_shapes: whether the shapes of the rows do not count, which need no computing.
    """
    needed = [*outputs, *step.values.values()]
    flat = tf.nest.flatten(list(rows), expand_composites=True)
    of_rows = {t.op for t in flat}
    ends = list(collectives.results)
    if but_shapes:
        ends += [op.outputs[0] for t in flat for op in t.consumers() if op.type == "Shape"]
    return _reaches(needed, lambda op: op in of_rows, ends)


def _reaches(tensors: Iterable[Any], is_wanted: Callable[[Any], bool], ends: Sequence[Any]) -> bool:
    """Whether tensors follow from an operation, other than through `ends`."""
    known = {id(t) for t in ends}
    todo, seen = [t for t in tensors if id(t) not in known], set()
    while todo:
        op = todo.pop().op
        if op in seen:
            continue
        seen.add(op)
        if is_wanted(op):
            return True
        todo += [t for t in op.inputs if id(t) not in known]
    return False
