"""The graphs in which several workers share a step.

Each worker computes its rows, and a collective stands wherever the graph needs the whole batch.
Variables are assigned after all collectives.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.execution import PartialStep
from hvd_elastic_keras.step.partition.horovod_collectives import HorovodCollectives
from hvd_elastic_keras.step.partition.one_round import (
    Instead,
    NotOneRoundError,
    OneRound,
    PartsNotSeparableError,
    needs_rows,
)
from hvd_elastic_keras.step.partition.plan import Planned
from hvd_elastic_keras.step.partition.planning.liveness import without_rows
from hvd_elastic_keras.step.pieces import PieceGraph, TogetherLimit, given_by_pieces
from hvd_elastic_keras.step.step_result import SKIP_MESSAGE, StepTail, there
from hvd_elastic_keras.step.traced_step import TracedStep
from hvd_elastic_keras.step.worker_rows import Place, at_least_one, one_row


@dataclasses.dataclass(eq=False)
class SharedStep(TracedStep):
    """Makes the graphs of a step for a worker beside others: in one pass, or in pieces.

    Attributes:
      tail: makes the numbers that travel with the last collective.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._collectives = HorovodCollectives(self.options.compression)
        self.tail = StepTail(self.world, self.options)
        self._newest_tail = tf.Variable(tf.zeros(self.tail.spec.shape), trainable=False)
        """The sum of the tails, for a step that raises and so cannot return it."""
        self._limit = TogetherLimit(self.options.together)
        self._most_early = 0
        """The most collectives in one graph that may end before a worker's part is computed."""

    def compiled(self, function: Callable[..., Any]) -> Any:
        """Returns a `tf.function` that takes the rows of a worker and the numbers of a step."""
        signature = [self._batch.flat_spec, tf.TensorSpec([None], tf.int64)]
        return tf.function(function, input_signature=signature, autograph=False)

    @functools.cached_property
    def without_rows(self) -> Planned:
        """The plan for most batches, for a worker that has no rows."""
        return dataclasses.replace(self.usual, analysis=without_rows(self.analysis))

    def _together(self, data: Any, numbers: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        return self._taken(self.usual, data, numbers)

    def _taken(
        self, planned: Planned, data: Any, numbers: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        place = self.place(numbers)
        collectives = self.collectives_of(place)
        step, outputs = self.computed(data, place, collectives, planned)
        return self.finished(step, outputs, place, collectives)

    def _in_pieces(self, data: Any, numbers: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Takes the same step with one piece of the rows in memory at a time."""
        self._check_pieces()
        place = self.place(numbers)
        began = self.tail.began()
        rows = self._rows(data, place, began)
        one_round = OneRound(self.captured, self.analysis)
        graph = PieceGraph(one_round, self._batch.flat_spec)
        given = given_by_pieces(graph, rows, place.pieces(self._limit.in_graph()))
        collectives = Instead(self._collectives, place.has_rows, self._has_others, given)
        step = self._partial(place, collectives, began)
        outputs = step.compute(rows, place.step)
        self._most_early = max(self._most_early, step.sums.num_early)
        if needs_rows(step, outputs, rows, collectives, but_shapes=True):
            raise NotOneRoundError
        return self.finished(step, outputs, place, collectives)

    def _check_pieces(self) -> None:
        if self._graph_calls_python:  # each piece would call it
            raise NotOneRoundError

    def place(self, numbers: tf.Tensor) -> Place:
        """Returns this worker's place in the step, from the argument of a graph."""
        return Place.of(numbers, self.tail.pieces)

    def collectives_of(self, place: Place) -> WorkerCollectives:
        """Returns the collectives of this worker in a step."""
        return WorkerCollectives(self._collectives, place.has_rows, self._has_others)

    @property
    def _has_others(self) -> tf.Tensor:
        return self.world.has_others.read_value()

    def any_rows(self) -> list[tf.Tensor]:
        """Returns one row of each tensor, for use where any row will do."""
        pairs = zip(self._batch.flat_spec, self._batch.per_row, strict=True)
        return [one_row(spec, entries) for spec, entries in pairs]

    def finished(
        self,
        step: PartialStep,
        outputs: list[tf.Tensor],
        place: Place,
        collectives: WorkerCollectives,
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Assigns the new values of the variables when all collectives have ended."""
        ready = step.variables.ready
        if ready is None:
            ready = self._ready(step, place, collectives, outputs)
        with tf.control_dependencies([ready]):
            self.assign(step.variables.values)
            return [tf.identity(t) for t in outputs], tf.identity(step.sums.tail)

    def computed(
        self,
        data: Sequence[Any],
        place: Place,
        collectives: WorkerCollectives,
        planned: Planned | None = None,
        *,
        assigns: bool = True,
    ) -> tuple[PartialStep, list[tf.Tensor]]:
        """Computes this worker's part of a step, with all collectives.

        Args:
          data: the rows of this worker, possibly none.
          planned: the plan for the batch; None: the plan for most batches.
          assigns: whether variables may be assigned once all collectives have ended. `finished`
            assigns those that are not assigned then.

        Returns:
          The step, which holds the new values of the variables, and the outputs of the graph.
        """
        planned = planned or self.usual
        began = self.tail.began()
        rows = self._rows(data, place, began, planned.per_row)
        step = self._partial(place, collectives, began, planned, assigns=assigns)
        outputs = step.compute(rows, place.step)
        self._most_early = max(self._most_early, step.sums.num_early)
        return step, outputs

    def _partial(
        self,
        place: Place,
        collectives: WorkerCollectives,
        began: tf.Tensor | None,
        planned: Planned | None = None,
        *,
        assigns: bool = True,
    ) -> PartialStep:
        planned = planned or self.usual
        return PartialStep(
            self.captured,
            planned.analysis,
            place.part,
            collectives,
            name=planned.name,
            tail=lambda before: self.tail.of(before, place, began),
            # Whether a step is skipped follows from the new values of all variables.
            ready=(lambda step: self._ready(step, place, collectives))
            if assigns and not self.options.skips_nonfinite
            else None,
        )

    def _ready(
        self,
        step: PartialStep,
        place: Place,
        collectives: WorkerCollectives,
        outputs: Sequence[tf.Tensor] = (),
    ) -> tf.Operation:
        """Returns one operation that comes after all that has to come before assignments."""
        done = collectives.outermost(tf.compat.v1.get_default_graph())
        return tf.group(*done, *self.checks(step, outputs, place))

    def sums_of_all(
        self, data: Sequence[Any], numbers: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the results of the collectives and the sum of the tails.

        Used by a worker that does not have its state yet, and no rows.

        Raises:
          PartsNotSeparableError: a collective stands in a loop or branch.
        """
        place = self.place(numbers)
        collectives = self.collectives_of(place)
        collectives.asserts = lambda rounds: False  # they would check values that are not there yet
        step, _ = self.computed(data, place, collectives, self.without_rows, assigns=False)
        graph = tf.compat.v1.get_default_graph()
        if len(collectives.outermost(graph)) < len(collectives.results):
            raise PartsNotSeparableError
        with tf.control_dependencies(self.tail.agreed(step.sums.tail, place)):
            return [tf.identity(t) for t in collectives.results], tf.identity(step.sums.tail)

    def _rows(
        self,
        data: Sequence[Any],
        place: Place,
        began: tf.Tensor | None,
        per_row: Sequence[int] | None = None,
    ) -> list[tf.Tensor]:
        with tf.control_dependencies([] if began is None else [began]):
            pairs = zip(data, per_row or self._batch.per_row, strict=True)
            return [at_least_one(t, place.has_rows, entries) for t, entries in pairs]

    def assign(self, values: dict[str, Any]) -> None:
        """Assigns the new values of the variables, given as `StepVariables.values`."""
        for name in sorted(self.captured.assigned & values.keys()):
            self.captured.variables[name].assign(values[name], read_value=False)

    def checks(self, step: PartialStep, outputs: Sequence[tf.Tensor], place: Place) -> list[Any]:
        """Returns the operations that have to succeed before anything is assigned."""
        checks = self.tail.agreed(step.sums.tail, place)
        if self.options.skips_nonfinite:
            with tf.control_dependencies(checks):
                checks += there([self._check_finite(step, outputs)])
        with tf.control_dependencies([step.sums.tail]):
            noted = [self.tail.clock.summed()] if self.tail.clock is not None else []
        return [*checks, *noted]

    def _check_finite(self, step: PartialStep, outputs: Sequence[tf.Tensor]) -> Any:
        """Raises if a value is not finite. All workers raise alike: all have the same values."""
        finite = [tf.reduce_all(tf.math.is_finite(t)) for t in outputs if t.dtype.is_floating]
        for name in self.captured.assigned:
            new, old = step.variables.values[name], self.captured.variables[name]
            if new.dtype.is_floating:  # a value that was infinite before may stay so
                finite.append(tf.reduce_all(tf.math.is_finite(new) | tf.equal(new, old)))
        with tf.control_dependencies([self._newest_tail.assign(step.sums.tail)]):
            return tf.debugging.assert_equal(
                tf.reduce_all(tf.stack(finite)), True, message=SKIP_MESSAGE
            )
