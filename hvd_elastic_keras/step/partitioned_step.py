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
from hvd_elastic_keras.keras_internals.traced_graphs import LOOPS, directly
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.step.late_step import Arrive, LateStep
from hvd_elastic_keras.step.partition.one_round import NotOneRoundError
from hvd_elastic_keras.step.partition.plan import Planned
from hvd_elastic_keras.step.shared_step import SharedStep
from hvd_elastic_keras.step.step_result import (
    SKIP_MESSAGE,
    STOP_MESSAGE,
    Logs,
    StepResult,
    python_logs,
    result_of,
)

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
class PartitionedStep(SharedStep):
    """A compiled step of a model, whose rows several workers can share.

    Attributes:
      model, variables, layout, world, train, num_rows, seed, options: see `TracedStep`.
      tail: see `SharedStep`.

    Raises:
      ConfigurationError: the step makes variables, or does something that no other worker can
        repeat.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._has_pieces = True
        """Whether the step can be computed in pieces, as far as is known."""
        self._had_others = False
        """Whether other workers took part in the newest step. If the worker is alone after that
        step, it computes the rows of all, for which memory may not suffice. So its first step
        alone runs in a graph that can be repeated: it assigns nothing before the end."""
        self._others_left_at = -math.inf
        """When this worker took its newest step with others, by `time.monotonic`."""
        self._begins_alone = False
        self._late: LateStep | None = None
        self._graph_of_several = directly(self.compiled(self._together))
        self._graphs_of_others: dict[str, Callable[..., Any]] = {}
        self._graph_in_pieces = directly(self.compiled(self._in_pieces))

    def may_be_late(self) -> bool:
        """Prepares for a step before the state is there. Returns whether that is possible."""
        if self._late is None and not self.calls_python and not self.computes_whole:
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
        unsent = self._changed_but_not_sent if is_traced else []
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
        return self._traced_alone(self._specs)

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
        return self._traced_alone(self._batch.of_size(self.num_rows))

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


def _logs(logs: Any) -> Logs:
    return python_logs(logs) if isinstance(logs, dict) else {}
