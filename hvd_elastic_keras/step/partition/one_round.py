"""Splits a step with only one round of collectives into two parts: before and after the round.

So its rows may be computed in pieces, one after the other, and the sums of the pieces go through
the collectives. A worker that is still receiving its variables may take part in the round before
they arrive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.captured_step import CapturedStep
from hvd_elastic_keras.step.partition.collectives import Collectives, Tail, WorkerCollectives
from hvd_elastic_keras.step.partition.execution import PartialStep
from hvd_elastic_keras.step.partition.part import Part
from hvd_elastic_keras.step.partition.plan import Analysis

SUM, ROWS = "sum", "rows"
EXTREMES: dict[str, Callable[[Any, Any], Any]] = {
    "Max": tf.maximum,
    "Min": tf.minimum,
    "All": tf.logical_and,
    "Any": tf.logical_or,
}


class NotOneRoundError(Exception):
    """A collective waits for another one or is in a loop, or later operations need the rows."""


class PartsNotSeparableError(Exception):
    """The part after the round needs more than its results: rows, or a collective in a loop."""


@dataclasses.dataclass(frozen=True)
class Given:
    """A tensor that a worker gives to a collective.

    Attributes:
      kind: `SUM`, `ROWS`, or the name of an extreme.
    """

    kind: str
    tensor: Any


class RecordingCollectives:
    """Notes the tensors given to collectives. The step goes on with any tensors of that form."""

    def __init__(self) -> None:
        self.given: list[Given] = []

    def summed(
        self, tensors: list[tf.Tensor], name: str, *, rounded: bool = False
    ) -> list[tf.Tensor]:
        self.given += [Given(SUM, t) for t in tensors]
        return [_apart(t) for t in tensors]

    def gathered(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        self.given += [Given(ROWS, t) for t in tensors]
        return [_apart(t) for t in tensors]

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        self.given.append(Given(kind, tensor))
        return _apart(tensor)


def _after_the_round(rounds: int) -> bool:
    """Skips assertions before the round: they were made where that part was computed."""
    return rounds > 0


class Instead(WorkerCollectives):
    """Collectives that use other tensors in place of the step's own ones.

    Args:
      given: these tensors, in the order of `OneRound.before`.
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
        """See `WorkerCollectives`. The tail does not wait for the step's own tensors."""
        return super().tail(make, self._all or before)

    def summed(
        self,
        tensors: list[tf.Tensor],
        name: str,
        tail: tf.Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> list[tf.Tensor]:
        """See `WorkerCollectives`."""
        given = [next(self._given) for _ in tensors]
        return super().summed(given, name, tail, rounded=rounded)

    def gathered(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """See `WorkerCollectives`."""
        return super().gathered([next(self._given) for _ in tensors], name)

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """See `WorkerCollectives`."""
        return super().extreme(next(self._given), kind, name)


class Known(WorkerCollectives):
    """Stands in for collectives whose results are known already.

    Args:
      results: the results, in the order of `OneRound.before`.
      tail: the sum of the tails.
    """

    def __init__(self, results: Sequence[tf.Tensor], tail: tf.Tensor) -> None:
        self.results = list(results)
        self.asserts = _after_the_round
        self._left = iter(results)
        self._tail = tail

    def are_used_up(self) -> bool:
        """Whether the step has taken all results. Otherwise it is not the step they are of."""
        return next(self._left, None) is None

    def tail(self, make: Tail, before: Sequence[tf.Tensor]) -> tf.Tensor:
        """See `WorkerCollectives`. The tail is not made again."""
        return self._tail

    def summed(
        self,
        tensors: list[tf.Tensor],
        name: str,
        tail: tf.Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> list[tf.Tensor]:
        """See `WorkerCollectives`."""
        sums = [tf.ensure_shape(next(self._left), t.shape) for t in tensors]
        return sums if tail is None else [*sums, self._tail]

    def gathered(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        """See `WorkerCollectives`."""
        return [tf.ensure_shape(next(self._left), [None, *t.shape[1:]]) for t in tensors]

    def extreme(self, tensor: tf.Tensor, kind: str, name: str) -> tf.Tensor:
        """See `WorkerCollectives`."""
        return tf.ensure_shape(next(self._left), tensor.shape)


MARK = "elastic_not_exchanged"


def _apart(tensor: tf.Tensor) -> tf.Tensor:
    """Marks a result of a collective: no tensor given to a collective may follow from it."""
    return tf.identity(tensor, name=MARK)


class OneRound:
    """The two parts of a step: before and after its only round of collectives.

    Raises:
      NotOneRoundError: the step has no such parts.
    """

    def __init__(self, captured: CapturedStep, analysis: Analysis) -> None:
        self._captured = captured
        self._analysis = analysis
        self.leaves = captured.leaves
        if analysis.num_rounds > 1 or any(c.in_loop for c in analysis.collectives):
            raise NotOneRoundError

    def before(self, rows: Sequence[Any], part: Part, number: Any) -> list[Given]:
        """Returns the tensors that a worker with these rows gives to the round of this step."""
        noted = RecordingCollectives()
        everybody = WorkerCollectives(noted)
        everybody.asserts = lambda rounds: rounds == 0
        PartialStep(self._captured, self._analysis, part, everybody).compute(rows, number)
        graph = tf.compat.v1.get_default_graph()
        if any(g.tensor.graph is not graph for g in noted.given):
            raise NotOneRoundError
        if _reaches([g.tensor for g in noted.given], lambda op: MARK in op.name, ()):
            raise NotOneRoundError
        return noted.given


def results_of(
    given: Sequence[Given], collectives: WorkerCollectives, name: str
) -> list[tf.Tensor]:
    """Runs all collectives but sums, and returns their results. `name` begins their names."""
    return [
        collectives.gathered([one.tensor], f"{name}_rows_{i}")[0]
        if one.kind == ROWS
        else collectives.extreme(one.tensor, one.kind, f"{name}_extreme_{i}")
        for i, one in enumerate(given)
    ]


def needs_rows(
    step: PartialStep,
    outputs: Sequence[Any],
    rows: Sequence[Any],
    collectives: WorkerCollectives,
    *,
    but_shapes: bool = False,
) -> bool:
    """Whether the results of a step need a worker's rows for anything but its collectives.

    Args:
      outputs: the outputs that `step` returned.
      rows: the rows that `step` was given.
      collectives: the collectives that `step` used.
      but_shapes: whether to ignore the shapes of the rows, which need no computing.
    """
    needed = [*outputs, *step.variables.values.values(), *step.variables.written]
    flat = tf.nest.flatten(list(rows), expand_composites=True)
    of_rows = {t.op for t in flat}
    ends = list(collectives.results)
    if but_shapes:
        ends += [op.outputs[0] for t in flat for op in t.consumers() if op.type == "Shape"]
    return _reaches(needed, lambda op: op in of_rows, ends)


def _reaches(tensors: Iterable[Any], is_wanted: Callable[[Any], bool], ends: Sequence[Any]) -> bool:
    """Whether tensors follow from a wanted operation in another way than through `ends`."""
    known = {id(t) for t in ends}
    # A constant that the step takes from outside follows from nothing.
    todo, seen = [t for t in tensors if tf.is_symbolic_tensor(t) and id(t) not in known], set()
    while todo:
        op = todo.pop().op
        if op in seen:
            continue
        seen.add(op)
        if is_wanted(op):
            return True
        todo += [t for t in op.inputs if id(t) not in known]
    return False
