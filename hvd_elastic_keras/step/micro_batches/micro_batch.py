"""One micro-batch: the user's `train_step` or `test_step`, captured so that it assigns nothing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Layout, Structure
from hvd_elastic_keras.keras_internals.apply_recorder import ApplyRecorder
from hvd_elastic_keras.keras_internals.held_objects import layers_of, optimizers_of
from hvd_elastic_keras.keras_internals.model_variables import (
    KerasVariable,
    ModelVariables,
    unwrapped,
)
from hvd_elastic_keras.step.micro_batches import log_values
from hvd_elastic_keras.step.micro_batches.across_examples import AcrossExamples
from hvd_elastic_keras.step.micro_batches.graph_nodes import calls_python, nodes_of
from hvd_elastic_keras.step.micro_batches.loss_terms import LossTerms
from hvd_elastic_keras.step.micro_batches.metric_parts import parts_of_metrics, weighted_where
from hvd_elastic_keras.step.micro_batches.random_draws import RandomDraws
from hvd_elastic_keras.step.micro_batches.refusals import (
    check_assignments,
    check_draws,
    check_variables,
    explained,
)
from hvd_elastic_keras.step.micro_batches.rows import Rows
from hvd_elastic_keras.step.micro_batches.staged_changes import (
    NUM_PIECES,
    Changes,
    KeptAssignments,
    difference,
    from_pieces,
    is_assigned,
    move,
    moved_in,
    pieces_of,
    put_back,
    state_of_python_generators,
)
from hvd_elastic_keras.step.micro_batches.traced import Accumulated, Notes, Tensors, Tracing, Trial

NUM_ROWS_FIELDS = len(dataclasses.fields(Rows))


class MicroBatch:
    """Computes what one micro-batch contributes to a step, and assigns the sum of all.

    Args:
      model: built and compiled.
      variables: all state of the model.
      layout: the form of a batch.
      train: whether to compute gradients and apply the optimizer.
      whole: metrics that do not add up: they are updated one micro-batch after the other, which
        is right only where a worker computes all micro-batches.
      tracing: how it is computed.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: ModelVariables,
        layout: Layout,
        *,
        train: bool,
        whole: Sequence[keras.Metric] = (),
        tracing: Tracing | None = None,
    ) -> None:
        self.notes = Notes()
        self.calls_python = True
        """Whether a step runs code of the user's, which may change anything."""
        self.read: tuple[tf.Variable, ...] | None = None
        """The variables that it looks at; None if it runs eagerly, when nobody knows."""
        self.tracing = tracing or Tracing()
        self._model = model
        self._train = train
        self._layout = layout
        self._variables = variables
        self._whole = [v for metric in whole for v in metric.variables]
        taken = {id(v) for v in self._whole}
        self._metrics = [v for v in variables.metrics if id(v) not in taken]
        self._optimizer: Any = model.optimizer
        self._with_gradient: list[KerasVariable] = []
        self._moved: list[KerasVariable] = []
        self._log_plan = log_values.LogPlan({})
        self._dtypes: list[tuple[Any, Any]] = []
        self.means: tuple[int, ...] = ()
        """See `average_instead_of_add`."""
        self._is_mean = np.zeros(sum(int(np.prod(v.shape)) for v in self._metrics), bool)
        self._function: Callable[..., tuple[Tensors, tf.Tensor]] = self._compute
        if not model.run_eagerly:
            self._function = self._traced()

    # --- computing -----------------------------------------------------------------------

    def __call__(self, data: Tensors, rows: Rows, whole: Sequence[tf.Tensor]) -> Tensors:
        """What a micro-batch adds to its step: `summed`, and metrics that do not add up."""
        results, _ = self._call(data, rows, whole)
        return results

    def _call(
        self, data: Tensors, rows: Rows, whole: Sequence[tf.Tensor]
    ) -> tuple[Tensors, tf.Tensor]:
        numbers = tf.stack([tf.cast(n, tf.int64) for n in rows.numbers])
        results, terms = self._function(data, numbers, list(whole))
        check_assignments(self.notes.dropped)
        self._dtypes = [(t.shape, t.dtype) for t in results]
        return results, terms

    def _traced(self) -> Callable[..., tuple[Tensors, tf.Tensor]]:
        function = tf.function(
            self._compute,
            input_signature=[
                self._layout.flat_spec,
                tf.TensorSpec([NUM_ROWS_FIELDS], tf.int64),
                [tf.TensorSpec(v.shape, v.dtype) for v in self._whole],
            ],
            jit_compile=True if self.uses_xla else None,
            autograph=False,
        )
        before = self._variables.present(self._model)
        concrete = function.get_concrete_function()
        check_variables(self._variables, self._model, before)
        nodes = nodes_of(concrete.graph)
        check_draws(nodes)
        self.calls_python = calls_python(nodes)
        self.read = tuple(concrete.graph.variables)
        results, _ = concrete.structured_outputs
        self._dtypes = [(o.shape, o.dtype) for o in results]
        return function  # type: ignore[no-any-return]

    def _compute(
        self, data: Tensors, numbers: tf.Tensor, whole: Tensors
    ) -> tuple[Tensors, tf.Tensor]:
        variables, tracing = self._variables, self.tracing
        rows = Rows(*(numbers[i] for i in range(NUM_ROWS_FIELDS)))
        weight = rows.weight  # first of all: busy threads would leave it to the last
        with tf.control_dependencies([weight]):
            data = [tf.identity(t) for t in data]
        draws = RandomDraws(
            rows,
            tracing.seed + (0 if self._train else 1),
            static_shapes=self.uses_xla,
            without=tracing.neutral,
        )
        terms = LossTerms(rows, tracing.sums)
        together = rows.together if tracing.together else None
        across = AcrossExamples(without=tracing.neutral, together=together)
        raw_before = [tf.identity(v) for v in variables.raw]
        recorder = ApplyRecorder(optimizers_of(self._model) if self._train else [])
        present = list(zip(self._whole, whole, strict=True))
        assignable = (*variables.trainable, *variables.averaged, *variables.seeds)
        scope = KeptAssignments([*assignable, *self._metrics, *self._whole], present)
        observers = (recorder.recording(), draws.replaced(), terms.observed(), across.observed())
        python_state = state_of_python_generators()
        with contextlib.ExitStack() as stack:
            for context in (explained(variables, scope, recorder), *observers, scope):
                stack.enter_context(context)
            for variable in variables.trainable:
                # Keras looks up the argument of a regularizer in the scope alone. The variable
                # itself, not a copy: the gradient tape watches nothing else.
                if variable.regularizer is not None:
                    scope.add_update((variable, variable.value))
            step = self._model.train_step if self._train else self._model.test_step
            logs = step(self._layout.pack(data))
            raw_after = [tf.identity(v) for v in variables.raw]
        self._log_plan, averages = log_values.plan(self._model, logs, scope)
        put_back(variables.raw, raw_before, raw_after)
        gradients = self._gradients(recorder, scope)
        changes = Changes(scope)
        others = (*self._metrics, *self._moved)
        self.notes = Notes(
            frozenset(across.noted),
            draws.are_random,
            tuple(sorted(draws.stateful)),
            tuple(terms.names.values()),
            recorder.reads_after([*(changes.value(v) for v in others), *raw_after, *averages]),
            self._log_plan.averaged,
            python_state != state_of_python_generators(),
            tuple(scope.dropped),
        )
        moved_raw = [difference(new, old) for new, old in zip(raw_after, raw_before, strict=True)]
        staged = self._staged(changes, moved_raw, averages, rows)
        # One dtype: a grouped allreduce takes no mixture. Half precision is summed in float32.
        dtype = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
        weighted = [tf.cast(g, dtype) * tf.cast(weight, dtype) for g in gradients]
        whole_after = [changes.value(v) for v in self._whole]
        return [*weighted, tf.cast(staged, dtype), *whole_after], terms.values

    def _staged(
        self, changes: Changes, moved_raw: Tensors, averages: Tensors, rows: Rows
    ) -> tf.Tensor:
        """Everything but gradients that adds up over the micro-batches of a step; shape [n]."""
        added = [changes.of(v) for v in self._metrics]
        moved = [*(changes.of(v) for v in self._moved), *moved_raw]
        # The generators advance once per step, as in plain `fit`: all micro-batches draw alike.
        is_first = tf.cast(tf.equal(rows.index, 0), tf.float32)
        seeds = [pieces_of(changes.value(v)) * is_first for v in self._variables.seeds]
        averaged = [tf.cast(value, tf.float32) for value in averages]
        parts = [
            *added,
            *(part * rows.weight for part in moved),
            *seeds,
            *(part * rows.weight for part in averaged),
        ]
        flat = [tf.reshape(part, [-1]) for part in parts]
        return tf.concat(flat, 0) if flat else tf.zeros([0], tf.float32)

    @property
    def runs_eagerly(self) -> bool:
        """Whether nothing is known of it before it has been called."""
        return bool(self._model.run_eagerly)

    @property
    def has_whole_metrics(self) -> bool:
        """Whether there are metrics that need one micro-batch after the other."""
        return bool(self._whole)

    @property
    def early_gradients(self) -> list[tf.TensorSpec]:
        """Those that may be sent before all is computed: none if anything is put back after it."""
        return [] if self._variables.raw else self.summed[:-1]

    @property
    def computes_in_half(self) -> bool:
        """Whether some layer computes with 16 bits, which round to 1e-3."""
        dtypes = {layer.compute_dtype for layer in layers_of(self._model)}
        return bool(dtypes & {"float16", "bfloat16"})

    def reads(self, variable: tf.Variable) -> bool:
        """Whether it may look at this variable."""
        return self.read is None or any(v is variable for v in self.read)

    @property
    def strays(self) -> list[str]:
        """Names of the variables that it looks at and nobody sends to newcomers."""
        known = {id(v) for v in self._variables.all}
        return [v.name for v in self.read or () if id(v) not in known]

    @property
    def uses_xla(self) -> bool:
        """Whether XLA compiles it."""
        return bool(self._model.jit_compile) and self.tracing.with_xla

    def _gradients(self, recorder: ApplyRecorder, scope: keras.StatelessScope) -> Tensors:
        """The recorded gradients; and which other variables the step moves by itself."""
        trainable = self._variables.trainable
        by_hand = [v for v in trainable if is_assigned(scope, v, recorder)]
        averaged = self._variables.averaged
        # Run eagerly, another micro-batch may assign others.
        self._moved = [*by_hand, *(averaged if self.runs_eagerly else moved_in(scope, averaged))]
        if not self._train:
            return []
        if trainable and not recorder.calls and not by_hand:
            raise ConfigurationError(
                "The model's train_step did not call its optimizer. Let it end with "
                "self.optimizer.apply(gradients, self.trainable_variables)."
            )
        if not recorder.calls:
            self._with_gradient = []
            return []
        self._optimizer, gradients, targets = recorder.calls[0]
        pairs = [(g, v) for g, v in zip(gradients, targets, strict=True) if g is not None]
        self._with_gradient = [v for _, v in pairs]
        # Some gradients, such as that of CTC, do not know their shape.
        return [tf.ensure_shape(tf.convert_to_tensor(g), v.shape) for g, v in pairs]

    # --- trials --------------------------------------------------------------------------

    def trial(
        self, batch: Structure, low: int = 0, total: int | None = None, together: int = 1
    ) -> Trial:
        """What a micro-batch would add, as examples from `low` on of `total`; assigns nothing."""
        size = structure.num_examples(batch)
        index = 0 if low == 0 else 1
        numbers = (0, index, low, size, size if total is None else total, together)
        rows = Rows(*(tf.constant(n, tf.int64) for n in numbers))
        results, terms = self._call(self._layout.flatten(batch), rows, self.whole_of(()))
        return Trial(self.accumulated(results), terms.numpy())

    def average_instead_of_add(self, numbers: Collection[int]) -> None:
        """Averages these of the parts of `metrics_and_parts`, where others are added."""
        self.means = tuple(sorted(numbers))
        parts = [part for _, parts in self.metrics_and_parts() for part in parts]
        for number, part in enumerate(parts):
            self._is_mean[part] = number in self.means

    def metrics_and_parts(self) -> list[tuple[keras.Metric, list[slice]]]:
        """Where the variables of each metric are in `Accumulated.staged`; they lie side by side."""
        return parts_of_metrics(self._model, self._metrics)

    # --- summing -------------------------------------------------------------------------

    @property
    def summed(self) -> list[tf.TensorSpec]:
        """What adds up over micro-batches; nothing is known of it before an eager one has run."""
        count = max(len(self._dtypes) - len(self._whole), 0)
        return [tf.TensorSpec(*s) for s in self._dtypes[:count]]

    def with_means_weighted(self, results: Tensors, weight: tf.Tensor) -> Tensors:
        """The results of a micro-batch as they are to be added.

        Gradients are weighted already; this weighs the metrics that are averaged.
        """
        if not self._is_mean.any():
            return results
        index = len(results) - len(self._whole) - 1
        weighted = weighted_where(self._is_mean, results[index], weight)
        return [*results[:index], weighted, *results[index + 1 :]]

    def whole_of(self, sums: Sequence[tf.Tensor]) -> Tensors:
        """The present values of metrics that do not add up."""
        if not sums:
            return [tf.identity(v.value) for v in self._whole]
        return list(sums[len(sums) - len(self._whole) :])

    def accumulated(self, sums: Sequence[tf.Tensor]) -> Accumulated:
        """The sums with names."""
        split = len(sums) - len(self._whole)
        return Accumulated(list(sums[: split - 1]), sums[split - 1], list(sums[split:]))

    # --- assigning -----------------------------------------------------------------------

    def assign(self, total: Accumulated) -> Tensors:
        """Lets the sums over all workers take effect.

        Returns:
          The averages of log values that no metric holds.
        """
        changed = [*self._metrics, *self._moved, *self._variables.raw]
        seeds = self._variables.seeds
        sizes = [
            *(int(np.prod(v.shape)) for v in changed),
            *(int(np.prod(v.shape)) * NUM_PIECES for v in seeds),
            *([1] * self._log_plan.num_averages),
        ]
        parts = tf.split(total.staged, sizes) if sizes else []
        if self._with_gradient:
            cast = [
                tf.cast(g, v.dtype)
                for g, v in zip(total.gradients, self._with_gradient, strict=True)
            ]
            self._optimizer.apply(cast, self._with_gradient)
        for variable, part in zip(changed, parts, strict=False):
            move(unwrapped(variable), tf.reshape(part, variable.shape))
        for variable, part in zip(seeds, parts[len(changed) :], strict=False):
            variable.value.assign(from_pieces(part, variable.value))
        for variable, value in zip(self._whole, total.whole, strict=True):
            variable.value.assign(value)
        return [tf.reshape(part, []) for part in parts[len(changed) + len(seeds) :]]

    def logs(self, averages: Tensors) -> dict[str, Any]:
        """What `train_step` would have returned for the whole global batch."""
        return self._log_plan.values(self._model, averages)
