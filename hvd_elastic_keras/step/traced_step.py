"""The user's step as a graph: the variables that it uses, and how workers share it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.keras_internals.build_by_trace import clear_losses
from hvd_elastic_keras.keras_internals.learning_rate import scaled
from hvd_elastic_keras.keras_internals.model_building import (
    first_sentence,
    has_batch_norm,
    has_fixed_batch_size,
)
from hvd_elastic_keras.keras_internals.model_variables import (
    ModelVariables,
    can_be_sent,
    optimizers_of,
)
from hvd_elastic_keras.keras_internals.traced_graphs import PYTHON_CALLS, nodes_of
from hvd_elastic_keras.settings.options import BATCH, NO_COMPRESSION
from hvd_elastic_keras.step.check_step import check_step
from hvd_elastic_keras.step.partition import plan
from hvd_elastic_keras.step.partition.captured_step import CapturedStep, capture
from hvd_elastic_keras.step.partition.plan import Analysis, Planned
from hvd_elastic_keras.step.partition.planning.analysis import analysed
from hvd_elastic_keras.step.partition.planning.decide import NotPartitionedError
from hvd_elastic_keras.step.partition.stateful_draws import state_of_python_generators
from hvd_elastic_keras.step.partition.within_micro_batches import over_micro_batches
from hvd_elastic_keras.step.step_options import PLAIN, StepOptions
from hvd_elastic_keras.step.world import World

log = logging.getLogger(__name__)
MOST_PROBLEMS = 10


@dataclasses.dataclass(eq=False)
class TracedStep:
    """The user's `train_step`, or `test_step` for evaluation, as a graph.

    Attributes:
      model: a model that is built and compiled.
      variables: all state of the model.
      layout: the form of a batch.
      world: facts about the present round, for the graph.
      train: whether it is `train_step`.
      num_rows: rows of a global batch; the sizes of collectives are compared for this number.
      has_one_size: whether plain Keras would trace the step for batches of `num_rows` only.
      seed: seed of stateful random operations.
      options: optional features of the step.
    """

    model: keras.Model
    variables: ModelVariables
    layout: Layout
    world: World
    _: dataclasses.KW_ONLY
    train: bool
    num_rows: int
    has_one_size: bool = False
    seed: int = 0
    options: StepOptions = PLAIN

    def __post_init__(self) -> None:
        by_micro_batch = self.train and self.options.batch_norm != BATCH
        self._normalises = by_micro_batch and has_batch_norm(self.model)
        numbers = tf.TensorSpec([None], tf.int32)
        self._batch = Layout(
            (self.layout.spec, numbers if self._normalises else None),
            (*self.layout.per_row, *([1] if self._normalises else [])),
        )
        """The form of a batch, with the micro-batch number of each row if a layer needs it."""
        self._name = "elastic_train" if self.train else "elastic_evaluate"
        self._runs_eagerly = bool(self.model.run_eagerly)
        self._draws_in_python = False
        self._has_one_trace = False
        """Whether the step could only be traced for batches of `num_rows`."""
        self._planned: dict[int, Planned] = {}
        """Plans for batches of unforeseen sizes, by an upper limit of their rows."""

    @functools.cached_property
    def captured(self) -> CapturedStep:
        """The user's graph.

        Raises:
          ConfigurationError: the step makes variables, or runs eagerly and cannot be traced.
        """
        before, generators = self.variables.present(self.model), state_of_python_generators()
        try:
            found = self._capture(self._batch.flat_spec)
        except ElasticError:
            raise
        except Exception as error:  # a step that cannot be traced may raise anything
            if self._runs_eagerly:
                says = first_sentence(error).rstrip(".")
                raise ConfigurationError(plan.NOT_TRACED.format(says)) from error
            known = self._captured_for_one_size() if self.has_one_size else None
            if known is None:
                raise
            found, self._has_one_trace = known, True
        self.variables.check_nothing_new(self.model, before)
        self._draws_in_python = generators != state_of_python_generators()
        return found

    def _capture(self, specs: Sequence[Any]) -> CapturedStep:
        with self._scaled_rate(), self._tracing():
            return capture(
                self._step_over_micro_batches,
                self._batch.pack(list(specs)),
                seed=self.seed + (not self.train),  # other random numbers than in training
                per_row=self._batch.per_row,
                draws_by_xla=bool(self.model.jit_compile),
            )

    def _captured_for_one_size(self) -> CapturedStep | None:
        """Traces the step as plain Keras does. Returns None if that fails, too."""
        clear_losses(self.model)
        try:
            return self._capture(self._batch.of_size(self.num_rows))
        except ElasticError:
            raise
        except Exception:  # the error of the trace for any size tells more
            log.debug("the step cannot be traced for one size, either", exc_info=True)
            return None

    @property
    def _specs(self) -> list[Any]:
        """The specs of the tensors for which the step was traced."""
        has_one = bool(self.captured) and self._has_one_trace
        return self._batch.of_size(self.num_rows) if has_one else self._batch.flat_spec

    @functools.cached_property
    def computes_whole(self) -> bool:
        """Whether each worker computes whole batches, since the step takes no parts of them."""
        if has_fixed_batch_size(self.model):
            return True
        return not self._runs_eagerly and bool(self.captured) and self._has_one_trace

    def _tracing(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the user's step is traced."""
        return contextlib.nullcontext()

    @functools.cached_property
    def beside(self) -> list[tf.Variable]:
        """Variables that the step uses, but neither the model nor its layers hold."""
        known = {id(v) for v in (*self.variables.all, *self.world.variables)}
        return [v for v in self.captured.variables.values() if id(v) not in known]

    @property
    def _changed_but_not_sent(self) -> list[tf.Variable]:
        """The variables of `beside` that the step assigns to, but that new workers do not get."""
        assigned = {id(self.captured.variables[name]) for name in self.captured.assigned}
        return [v for v in self.beside if id(v) in assigned and not can_be_sent(v)]

    def sent_beside(self, *, has_others: bool) -> list[tf.Variable]:
        """Returns the variables of `beside` that belong to the state of a training.

        The step may assign to them, or a callback may, such as one that anneals a weight of the
        loss. Variables that cannot be sent are left out.

        Args:
          has_others: whether other workers may ever take part. If not, a step that runs eagerly
            need not be traceable, and no variables are returned.
        """
        if self._runs_eagerly and not has_others:
            return []
        return list(filter(can_be_sent, self.beside))

    @property
    def _not_sent(self) -> list[str]:
        return [v.name for v in self.beside if not can_be_sent(v)]

    @property
    def told(self) -> tuple[str, ...]:
        """Texts that the user should read before the first step."""
        if self._runs_eagerly:
            return ()
        return plan.listed(
            [
                plan.told_of_draws(self.captured.stateful_draws, in_python=self._draws_in_python),
                plan.told_of_variables(self._not_sent),
            ]
        )

    @property
    def warnings_for_several(self) -> tuple[str, ...]:
        """Texts that the user should read before the first step of a job with several workers."""
        return plan.listed(
            [
                [plan.COMPUTES_WHOLE] if self.computes_whole else [],
                [plan.EAGERLY] if self._runs_eagerly else [],
                plan.told_of_variables(self._not_sent) if self._runs_eagerly else [],
                [plan.WITHOUT_XLA] if self.model.jit_compile else [],
            ]
        )

    @functools.cached_property
    def analysis(self) -> Analysis:
        """How several workers share the step.

        Raises:
          ConfigurationError: several workers cannot share it.
        """
        return self._analysed(self.num_rows)

    @property
    def collectives_digest(self) -> str:
        """A digest of the collectives. Workers whose digests differ would wait for each other."""
        analysis = self.analysis
        found = [
            (c.what, c.level, c.num_bytes, c.in_loop, c.tensor in analysis.rounded)
            for c in analysis.collectives
        ]
        return hashlib.sha256(repr(found).encode()).hexdigest()[:16]

    def _analysed(
        self, num_rows: int, *, whole: bool = False, captured: CapturedStep | None = None
    ) -> Analysis:
        try:
            half = self.options.compression != NO_COMPRESSION
            step = captured or self.captured
            whole = whole or self.computes_whole
            found = analysed(step, num_rows, whole=whole, half_gradients=half)
        except NotPartitionedError as error:
            raise ConfigurationError(
                f"The step of this model cannot be shared by several workers: {error}. Train it "
                "with one worker, or change that operation."
            ) from error
        log.info("%s: %s", self._name, "; ".join(found.lines()))
        return found

    @functools.cached_property
    def calls_python(self) -> bool:
        """Whether the user's Python code runs in every step."""
        return self._runs_eagerly or self._graph_calls_python

    @functools.cached_property
    def _kinds(self) -> frozenset[str]:
        """TensorFlow's names of the operations in the graph and in its functions."""
        return frozenset(node.op for node in nodes_of(self.captured.graph))

    @property
    def _graph_calls_python(self) -> bool:
        return not self._kinds.isdisjoint(PYTHON_CALLS)

    @functools.cached_property
    def usual(self) -> Planned:
        """The plan by which several workers take most batches."""
        return Planned(self._name, self.analysis, self._batch.per_row)

    def planned_for(self, num_rows: int, *, is_whole: bool) -> Planned:
        """Returns the plan by which several workers take a batch.

        The plan for an unforeseen size is made when the first such batch comes.

        Args:
          is_whole: see `LocalBatch`.
        """
        if is_whole:
            return self._whole
        if self._has_one_trace and num_rows != self.num_rows:
            raise ConfigurationError(
                f"A batch has {num_rows} examples, but the step counts on {self.num_rows} "
                "(x.shape[0], or a number in its code)."
            )
        if self.computes_whole or 1 < num_rows <= (self.analysis.most_rows or 0):
            return self.usual
        rows = 1 if num_rows == 1 else 2 ** num_rows.bit_length()
        if rows not in self._planned:
            analysis = self._analysed(rows, whole=rows == 1)
            self._planned[rows] = Planned(f"{self._name}_{rows}", analysis, self._batch.per_row)
        return self._planned[rows]

    @functools.cached_property
    def _whole(self) -> Planned:
        """The plan by which each worker has the whole batch, and computes all of it."""
        leaves = tuple(dataclasses.replace(leaf, per_row=0) for leaf in self.captured.leaves)
        captured = dataclasses.replace(self.captured, leaves=leaves)
        analysis = self._analysed(self.num_rows, whole=True, captured=captured)
        return Planned(f"{self._name}_whole", analysis, [0 for _ in leaves])

    def check(self, batch: LocalBatch, num_workers: int) -> int:
        """Checks that `num_workers` workers compute the same numbers as one worker.

        The workers are threads, which take a whole batch. Nothing is assigned.

        Returns:
          Number of operations checked, each by itself.

        Raises:
          ConfigurationError: the numbers differ.
        """
        rows = np.diff(self.bounds(batch, num_workers)).tolist()
        problems = check_step(self.captured, self.analysis, self._flat(batch), rows)
        if problems:
            listed = "\n".join(f"  {text}" for text in problems[:MOST_PROBLEMS])
            raise ConfigurationError(
                f"{num_workers} workers would not compute what one computes. {len(problems)} "
                f"differences have been found in the step, first these:\n{listed}\nThis is a "
                "defect of hvd_elastic_keras: please report it with these lines. Train with one "
                "worker meanwhile."
            )
        return self.analysis.plan.num_operations

    def bounds(self, batch: LocalBatch, num_workers: int) -> list[int]:
        """Returns where each worker's rows begin in a whole batch, and where the last ones end."""
        # Batch norm needs whole micro-batches.
        offsets = batch.part.offsets if self._normalises else range(int(batch.part.offsets[-1]) + 1)
        last = len(offsets) - 1
        return [int(offsets[last * i // num_workers]) for i in range(num_workers + 1)]

    def _step_over_micro_batches(self, batch: tuple[Any, tf.Tensor | None]) -> Any:
        data, numbers = batch
        step = self.model.train_step if self.train else self.model.test_step
        if numbers is None:
            return step(data)
        with over_micro_batches(numbers):
            return step(data)

    def _flat(self, batch: LocalBatch) -> list[Any]:
        """Returns the tensors of a worker's rows."""
        numbers = None
        if self._normalises and batch.is_whole:
            numbers = tf.zeros([structure.num_examples(batch.data)], tf.int32)
        elif self._normalises:
            sizes = np.diff(batch.part.offsets)
            first = batch.part.first_micro_batch
            numbers = tf.constant(np.repeat(np.arange(first, first + len(sizes)), sizes), tf.int32)
        return self._batch.flatten((batch.data, numbers))

    def _scaled_rate(self) -> contextlib.AbstractContextManager[None]:
        if not self.options.scales_rate:
            return contextlib.nullcontext()
        return scaled(optimizers_of(self.model), self.world.learning_rate_scale)
