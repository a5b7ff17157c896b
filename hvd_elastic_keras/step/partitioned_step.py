"""The atomic step as the user's own graph, partitioned over the rows of the global batch.

One worker takes the step as plain Keras does: the graph of the user's `train_step`, over the whole
batch. Several workers take it as `partition/` plans it: each computes its rows, and a collective
stands wherever the graph needs the whole batch. The last collective also carries the count of
examples and the flags "membership change pending" and "stop wanted". Variables are assigned only
after all collectives: a worker that fails before is exactly at its last finished step.

Both graphs come from one trace and read the same variables, so that workers may come and go
between any two steps.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan import example_ids
from hvd_elastic_keras.keras_internals.model_building import weighs_losses_by_size
from hvd_elastic_keras.keras_internals.model_variables import can_be_sent
from hvd_elastic_keras.keras_internals.traced_graphs import LOOPS, directly
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.step.late_step import Arrive, LateStep
from hvd_elastic_keras.step.partition.collectives import Collectives, WorkerCollectives
from hvd_elastic_keras.step.partition.execution import PartialStep
from hvd_elastic_keras.step.partition.horovod_collectives import HorovodCollectives
from hvd_elastic_keras.step.partition.one_round import (
    Instead,
    NotOneRoundError,
    OneRound,
    PartsNotSeparableError,
    needs_rows,
)
from hvd_elastic_keras.step.partition.planning.liveness import without_rows
from hvd_elastic_keras.step.pieces import PieceGraph, TogetherLimit, given_by_pieces
from hvd_elastic_keras.step.step_result import (
    SKIP_MESSAGE,
    STOP_MESSAGE,
    Logs,
    StepResult,
    StepTail,
    python_logs,
    result_of,
    there,
)
from hvd_elastic_keras.step.traced_step import Planned, TracedStep
from hvd_elastic_keras.step.worker_rows import Place, at_least_one, one_row

NOT_IN_PIECES = (
    "warning: the step needs all rows of a worker at once, so that micro-batches are not computed "
    "one after the other: it has several rounds of collectives, what follows them needs the rows, "
    "or it calls Python code"
)
NOT_PRINTED = (
    "warning: the step calls tf.print, which prints only while one worker trains alone: each of "
    "several workers would print numbers of its own rows. Return them in the logs instead"
)
ALONE_FOR_LONG_S = 300.0
"""The time after which a worker that others have left takes its steps as if it had begun alone."""


@dataclasses.dataclass(eq=False)
class PartitionedStep(TracedStep):
    """A compiled step of a model, whose rows several workers can share.

    Attributes:
      model, variables, layout, world, train, num_rows, seed, options: see `TracedStep`.
      collectives: how the workers talk to each other; None: by Horovod.
      tail: makes the numbers that travel with the last collective.

    Raises:
      ConfigurationError: the step makes variables, or does something that no other worker can
        repeat.
    """

    collectives: Collectives | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._collectives = self.collectives or HorovodCollectives(self.options.compression)
        self.tail = StepTail(self.world, self.options)
        self._newest_tail = tf.Variable(tf.zeros(self.tail.spec.shape), trainable=False)
        """The sum of the tails, for a step that raises and so cannot return it."""
        self._has_pieces = True
        """Whether the step can be computed in pieces, as far as is known."""
        self._had_others = False
        """Whether other workers took part in the newest step. If the worker is alone after that
        step, it computes the rows of all, for which memory may not suffice. So its first step
        alone runs in a graph that can be repeated: it assigns nothing before the end."""
        self._others_left_at = -math.inf
        """When this worker took its newest step with others, by `time.monotonic`."""
        self._begins_alone = False
        self._most_early = 0
        """The most collectives in one graph that may end before a worker's part is computed."""
        self._late: LateStep | None = None
        self._limit = TogetherLimit(self.options.together)
        self._graph_of_several = directly(self.compiled(self._together))
        self._graphs_of_others: dict[str, Callable[..., Any]] = {}
        self._graph_in_pieces = directly(self.compiled(self._in_pieces))

    def compiled(self, function: Callable[..., Any]) -> Any:
        """Returns a `tf.function` that takes the rows of a worker and the numbers of a step."""
        signature = [self._batch.flat_spec, tf.TensorSpec([None], tf.int64)]
        return tf.function(function, input_signature=signature, autograph=False)

    @functools.cached_property
    def without_rows(self) -> Planned:
        """The plan for most batches, for a worker that has no rows."""
        return dataclasses.replace(self.usual, analysis=without_rows(self.analysis))

    def may_be_late(self) -> bool:
        """Prepares for a step before the state is there. Returns whether that is possible."""
        if self._late is None and not self.calls_python:
            self._late = LateStep.of(self)
        return self._late is not None

    def __call__(
        self, batch: LocalBatch, step: int, stop: bool = False, arrive: Arrive | None = None
    ) -> StepResult:
        """Takes the step together with all workers.

        Args:
          batch: this worker's part.
          step: number of the step since the beginning.
          stop: whether no worker may take this step, because this worker's callbacks want to end
            the training before it, or its data have ended.
          arrive: waits for the state of this worker. None: the worker has its state. A worker
            without its state has no rows of the batch.

        Returns:
          The result on which all workers agree.

        Raises:
          tf.errors.OpError: a collective failed; nothing has been assigned.
        """
        in_pieces = self._limit.is_limited and self._has_pieces
        needs_graph = self.options.skips_nonfinite or in_pieces or arrive is not None
        is_alone = self.world.size == 1
        stays = (self._had_others or self._alone_for_a_while) and not self.calls_python
        if is_alone and self._has_own and not needs_graph and not stays:
            return self._alone(batch, step, stop)
        result = self._taken_with_others(batch, step, stop, arrive)
        self._had_others = not is_alone
        if not is_alone:
            self._others_left_at = time.monotonic()
        return result

    @property
    def _alone_for_a_while(self) -> bool:
        """Whether this worker has been alone too short a time for a graph of its own to pay.

        TensorFlow optimises a graph when it is run for the first time, which takes 10 s with
        ResNet-50. A worker that began alone has optimised its graph already.
        """
        return not self._begins_alone and time.monotonic() - self._others_left_at < ALONE_FOR_LONG_S

    def warm_up(
        self, batch: LocalBatch, *, stops: bool, has_others: bool, begins_alone: bool
    ) -> None:
        """Traces the graphs that a worker may need, and runs each once, alone.

        The user's step is not run eagerly here: it has nothing to trace, and changes by its Python
        code could not be undone. Variables that are not sent to new workers keep their values.

        Args:
          stops: whether to run only the part before the assignments.
          has_others: whether other workers may ever take part.
          begins_alone: whether this worker takes its first steps alone.
        """
        needs_graph = has_others or self.options.skips_nonfinite or not self._has_own
        is_traced = needs_graph or not self._runs_eagerly
        unsent = [v for v in self._changed_beside if not can_be_sent(v)] if is_traced else []
        before = [v.read_value() for v in unsent]
        self._begins_alone = begins_alone
        if has_others and "PrintV2" in self._kinds:
            notices.tell(NOT_PRINTED)
        try:
            if begins_alone and self._has_own and not self._runs_eagerly:
                assert callable(self._own_graph_of_full_batch)  # traced before the first callback
                if not stops:
                    self._alone(batch, 0, False)
            if needs_graph:
                self._taken_with_others(batch, 0, stops)
            if self._late is not None:
                self._taken_with_others(batch, 0, True, arrive=lambda: None)
        finally:
            for variable, value in zip(unsent, before, strict=True):
                variable.assign(value)

    @property
    def _has_own(self) -> bool:
        """Whether a single worker takes the step as plain Keras does."""
        return True

    # --- one worker ----------------------------------------------------------------------

    def _alone(self, batch: LocalBatch, step: int, stop: bool) -> StepResult:
        if stop:
            return StepResult({}, self._change_pending, stopped=True)
        began = time.perf_counter()
        flat = self._flat(batch)
        if self._runs_eagerly:
            with self._scaled_rate():
                logs = self._step_over_micro_batches(self._batch.pack(flat))
        else:
            is_full = batch.part.num_examples_of_step == self.num_rows and not batch.is_whole
            graph = self._own_graph_of_full_batch if is_full else self._own_graph
            logs = graph(*flat, tf.constant(step, tf.int64))
        found = _logs(logs)
        self.world.computed.assign(step)
        if self.tail.clock is not None:
            self.tail.clock.computed_alone()
        seconds = [0.0] * self.options.measured_workers
        if seconds:
            seconds[0] = (time.perf_counter() - began) / max(1, int(batch.part.offsets[-1]))
        digest = example_ids.digest(np.asarray(batch.ids)) if self.tail.pieces else 0
        return StepResult(found, self._change_pending, seconds=seconds, digest=digest)

    @functools.cached_property
    def _own_graph(self) -> Callable[..., Any]:
        """The step as Keras itself would trace it for batches of any size."""
        if not self.model.jit_compile:
            function: Callable[..., Any] = self.captured.function
            return function
        return self._traced_alone(self._batch.flat_spec)

    @functools.cached_property
    def _own_graph_of_full_batch(self) -> Callable[..., Any]:
        """The step as Keras itself would trace it, if all batches are of the same size.

        A loop, as in an LSTM, runs up to a quarter faster if it knows the size. Other graphs do not
        gain enough to be traced once more. Neither does a worker that is alone for a while only.
        """
        is_worth_it = self._begins_alone and not self._kinds.isdisjoint(LOOPS)
        # Other steps of the same epoch may be taken in the graph of any size.
        if not (is_worth_it and self.has_one_size) or weighs_losses_by_size(self.model):
            return self._own_graph
        pairs = zip(self._batch.flat_spec, self._batch.per_row, strict=True)
        return self._traced_alone([_with_rows(s, self.num_rows * n) if n else s for s, n in pairs])

    def _traced_alone(self, specs: Sequence[Any]) -> Callable[..., Any]:
        function = tf.function(
            self.captured.step,
            input_signature=[*specs, tf.TensorSpec([], tf.int64)],
            autograph=False,
            jit_compile=bool(self.model.jit_compile) or None,
        )
        with self._scaled_rate(), self._tracing():  # as `captured` was traced
            graph: Callable[..., Any] = function.get_concrete_function()
        return graph

    @property
    def _change_pending(self) -> bool:
        return bool(self.world.change_pending.numpy() > 0)

    # --- several workers -----------------------------------------------------------------

    def _with_others(self, planned: Planned, flat: Any, numbers: tf.Tensor) -> Any:
        """Takes the step in a graph for several workers, which the first such step traces."""
        if planned is self.usual and self._limit.is_limited and self._has_pieces:
            try:
                return self._graph_in_pieces(flat, numbers)
            except NotOneRoundError:
                self._has_pieces = False
                notices.tell(NOT_IN_PIECES)
        return self._graph_of(planned)(flat, numbers)

    def _graph_of(self, planned: Planned) -> Callable[..., Any]:
        if planned is self.usual:
            return self._graph_of_several
        if planned.name not in self._graphs_of_others:
            taken = self.compiled(lambda data, numbers: self._taken(planned, data, numbers))
            self._graphs_of_others[planned.name] = directly(taken)
        return self._graphs_of_others[planned.name]

    def _taken_with_others(
        self, batch: LocalBatch, step: int, stop: bool, arrive: Arrive | None = None
    ) -> StepResult:
        part = batch.part
        planned = self.planned_for(part.num_examples_of_step, is_whole=batch.is_whole)
        take = functools.partial(self._with_others, planned)
        if arrive is not None:
            if self._late is not None and planned is self.usual:
                take = functools.partial(self._late, arrive)
            else:  # batches of other sizes have only one graph
                arrive()
        digest = (
            example_ids.pieces(example_ids.digest(np.asarray(batch.ids)))
            if self.tail.pieces
            else ()
        )
        size, total = int(part.offsets[-1]), part.num_examples_of_step
        # One array: each argument of a graph costs tens of microseconds.
        head = (step, part.first_example, size, total, stop, part.first_micro_batch)
        numbers = np.array([*head, *digest, *part.offsets], np.int64)
        flat = self._flat(batch)
        try:
            outputs, tail = self._limit.run(
                lambda: take(flat, tf.constant(numbers)),
                len(part.offsets) - 1,
                computing=lambda: int(self.world.computed.numpy()) != step,
                repeatable=lambda: self._is_repeatable,
            )
        except tf.errors.InvalidArgumentError as error:
            if STOP_MESSAGE in str(error):
                return StepResult({}, stopped=True)
            if SKIP_MESSAGE in str(error):
                return result_of({}, self._newest_tail, self.tail.pieces, skipped=True)
            raise
        return result_of(_logs(self.captured.results(outputs)), tail, self.tail.pieces)

    @property
    def _is_repeatable(self) -> bool:
        """Whether a worker may compute its part again while others wait for it.

        It may not if a collective may have ended meanwhile: the others would not repeat it. It may
        not call the user's Python code again, either.
        """
        return not self.calls_python and (self.world.size == 1 or not self._most_early)

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


def _with_rows(spec: Any, rows: int) -> Any:
    """Returns the spec of a dense tensor with a known number of rows; another spec as it is."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return spec
    return tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype)


def _logs(logs: Any) -> Logs:
    return python_logs(logs) if isinstance(logs, dict) else {}
