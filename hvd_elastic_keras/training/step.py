"""The atomic step: micro-batches, one grouped allreduce, then all assignments at once.

The user's unmodified `train_step` runs once per micro-batch inside `keras.StatelessScope`, with
the optimizer's `apply` replaced by a recorder, so that it assigns nothing. What it would have
changed is summed over the worker's micro-batches:

* gradients, weighted with examples of the micro-batch / examples of the global batch;
* differences of metric states (sums add up);
* differences of batch-norm statistics and the like, weighted as the gradients.

One `hvd.grouped_allreduce(op=Sum)` adds these over the workers, together with the example count
and the "membership change pending" flag. Only after all its outputs are there is anything
assigned: a worker that fails before stands exactly at its last finished step.

Random numbers: each micro-batch sees its seed generators at
`fold_in(initial state, step * micro-batches + index)`, which makes dropout independent of who
computes it; the states themselves never change.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data.pipeline import LocalBatch
from hvd_elastic_keras.data.source import Structure
from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.training.variables import KerasVariable, variables_of

Tensors = list[tf.Tensor]
MAX_SEED = 2**31 - 1
FLAGS = 2
"""Last entries of the reduced vector: "membership change pending" and "stop wanted"."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The outcome of a step, the same on every worker.

    Attributes:
      logs: the metrics after the step.
      change_pending: whether any worker knows of a membership change.
      stop_wanted: whether any worker's callbacks want to end the training.
    """

    logs: dict[str, float]
    change_pending: bool
    stop_wanted: bool


class AtomicStep:
    """A compiled step of a model: `train` or, without an optimizer, `evaluate`.

    Args:
      model: built and compiled.
      element_spec: `tf.TensorSpec`s of one example.
      num_micro_batches: micro-batches of a full global batch.
      change_flag: 1.0 if this worker knows of a membership change, else 0.0.
      train: whether to compute gradients and apply the optimizer.
    """

    def __init__(
        self,
        model: keras.Model,
        element_spec: Structure,
        num_micro_batches: int,
        change_flag: tf.Variable,
        train: bool,
    ) -> None:
        self.model = model
        self._train = train
        self._change_flag = change_flag
        self._num_micro_batches = num_micro_batches
        self._variables = variables_of(model)
        self._name = "elastic_train_step" if train else "elastic_evaluation_step"
        self._with_gradient: list[KerasVariable] = []
        batch_spec = tf.nest.map_structure(
            lambda s: tf.TensorSpec([None, *s.shape], s.dtype), element_spec
        )
        self._micro_batch = self._make_micro_batch(batch_spec)
        self._function = tf.function(
            self._step,
            input_signature=[
                batch_spec,
                tf.TensorSpec([None], tf.int32),
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([], tf.float32),
                tf.TensorSpec([], tf.float32),
            ],
            autograph=False,
        )

    def __call__(self, batch: LocalBatch, step: int, stop: bool = False) -> StepResult:
        """Takes the step with everybody.

        Args:
          batch: this worker's part.
          step: number of the step since the beginning; random numbers follow from it.

          stop: whether this worker's callbacks want to end the training.

        Returns:
          What all workers agree on.

        Raises:
          tf.errors.OpError: the collective failed; nothing has been assigned.
        """
        part = batch.part
        first = step * self._num_micro_batches + part.first_micro_batch
        logs, flags = self._function(
            batch.data,
            part.offsets,
            np.int64(first),
            np.float32(part.num_examples_of_step),
            np.float32(stop),
        )
        change_pending, stop_wanted = (bool(flag > 0) for flag in flags.numpy())
        values = {name: float(value) for name, value in logs.items()}
        return StepResult(values, change_pending, stop_wanted)

    # --- one micro-batch -----------------------------------------------------------------

    def _make_micro_batch(self, batch_spec: Structure) -> Callable[..., Tensors]:
        function = tf.function(
            self._compute,
            input_signature=[
                batch_spec,
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([], tf.float32),
            ],
            jit_compile=True if self.model.jit_compile else None,
            autograph=False,
        )
        concrete = function.get_concrete_function()
        self._shapes = [(o.shape, o.dtype) for o in tf.nest.flatten(concrete.structured_outputs)]
        return function  # type: ignore[no-any-return]

    def _compute(self, data: Structure, index: tf.Tensor, weight: tf.Tensor) -> Tensors:
        """Gradients and staged updates of micro-batch number `index`, nothing assigned."""
        variables = self._variables
        seeds = [(v, _fold_in(v.value, index)) for v in variables.seeds]
        with contextlib.ExitStack() as stack:
            recorded: dict[str, Any] = {}
            if self._train:
                recorded = stack.enter_context(_recorded_apply(self.model.optimizer))
            scope = stack.enter_context(
                keras.StatelessScope(state_mapping=seeds, collect_losses=True)
            )
            for variable in variables.trainable:
                # Keras looks up the argument of a regularizer in the scope alone. The variable
                # itself, not a copy: the gradient tape watches nothing else.
                if variable.regularizer is not None:
                    scope.add_update((variable, variable.value))
            step = self.model.train_step if self._train else self.model.test_step
            step(data)

        def difference(variable: KerasVariable) -> tf.Tensor:
            new = scope.get_current_value(variable)
            if new is None:
                return tf.zeros(variable.shape, tf.float32)
            # Large counters would lose their last digits in float32, and bool has no difference.
            wide = tf.float32 if variable.value.dtype.is_floating else tf.int64
            wide = tf.float64 if variable.value.dtype == tf.float64 else wide
            return tf.cast(tf.cast(new, wide) - tf.cast(variable.value, wide), tf.float32)

        gradients = self._dense_gradients(recorded) if self._train else []
        added = [difference(v) for v in variables.metrics]
        moved = [difference(v) * weight for v in variables.averaged] if self._train else []
        flat = [tf.reshape(t, [-1]) for t in (*added, *moved)]
        # One dtype: a grouped allreduce takes no mixture. Half precision is summed in float32.
        dtype = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
        weighted = [tf.cast(g, dtype) * tf.cast(weight, dtype) for g in gradients]
        return [*weighted, tf.cast(tf.concat(flat, 0), dtype)]

    def _dense_gradients(self, recorded: dict[str, Any]) -> Tensors:
        if "gradients" not in recorded:
            raise ConfigurationError(
                "The model's train_step did not call its optimizer. Let it end with "
                "self.optimizer.apply(gradients, self.trainable_variables)."
            )
        of_variable = {
            id(v): g
            for g, v in zip(recorded["gradients"], recorded["variables"], strict=True)
            if g is not None
        }
        self._with_gradient = [v for v in self._variables.trainable if id(v) in of_variable]
        return [tf.convert_to_tensor(of_variable[id(v)]) for v in self._with_gradient]

    # --- the whole step ------------------------------------------------------------------

    def _step(
        self,
        data: Structure,
        offsets: tf.Tensor,
        first_index: tf.Tensor,
        num_examples: tf.Tensor,
        stop: tf.Tensor,
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        sums = self._sum_over_micro_batches(data, offsets, first_index, num_examples)
        count = tf.cast(offsets[-1], tf.float32)
        *gradients, staged = sums
        with tf.control_dependencies(sums):  # as late as possible
            change_pending = self._change_flag.read_value()
        tail = tf.cast(tf.stack([count, change_pending, stop]), staged.dtype)
        staged = tf.concat([staged, tail], 0)
        reduced = hvd.grouped_allreduce(
            [*gradients, staged], op=hvd.Sum, name=self._name, ignore_name_scope=True
        )
        counted = tf.debugging.assert_equal(
            tf.cast(reduced[-1][-FLAGS - 1], tf.float32),
            num_examples,
            message="The workers did not compute each example of the global batch exactly once.",
        )
        # Everything that assigns is inside: the optimizer also changes variables that do not
        # depend on gradients (its iterations, weight decay).
        with tf.control_dependencies([*reduced, counted]):
            *gradients, staged = [tf.identity(t) for t in reduced]
            self._assign(gradients, staged)
        return self.model.get_metrics_result(), staged[-FLAGS:]

    def _sum_over_micro_batches(
        self,
        data: Structure,
        offsets: tf.Tensor,
        first_index: tf.Tensor,
        num_examples: tf.Tensor,
    ) -> Tensors:
        def body(i: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            low, high = offsets[i], offsets[i + 1]
            weight = tf.cast(high - low, tf.float32) / num_examples
            micro = tf.nest.map_structure(lambda t: t[low:high], data)
            results = self._micro_batch(micro, first_index + tf.cast(i, tf.int64), weight)
            return (i + 1, *(s + r for s, r in zip(sums, results, strict=True)))

        zeros = [tf.zeros(shape, dtype) for shape, dtype in self._shapes]
        _, *sums = tf.while_loop(
            lambda i, *_: i < tf.size(offsets) - 1,
            body,
            [tf.constant(0), *zeros],
            parallel_iterations=1,
        )
        return list(sums)

    def _assign(self, gradients: Tensors, staged: tf.Tensor) -> None:
        variables = self._variables
        changed = (*variables.metrics, *(variables.averaged if self._train else ()))
        sizes = [int(np.prod(v.shape)) for v in changed]
        parts = tf.split(staged, [*sizes, 1 + FLAGS])[:-1]
        if self._train:
            cast = [
                tf.cast(g, v.dtype) for g, v in zip(gradients, self._with_gradient, strict=True)
            ]
            self.model.optimizer.apply(cast, self._with_gradient)
        for variable, part in zip(changed, parts, strict=True):
            difference = tf.reshape(part, variable.shape)
            value = variable.value
            if value.dtype.is_floating:
                value.assign_add(tf.cast(difference, value.dtype))
            else:
                moved = tf.cast(value, tf.int64) + tf.cast(tf.round(difference), tf.int64)
                value.assign(tf.cast(moved, value.dtype))


@contextlib.contextmanager
def _recorded_apply(optimizer: Any) -> Iterator[dict[str, Any]]:
    """Notes what the optimizer is asked to apply, and applies nothing."""
    recorded: dict[str, Any] = {}

    def record(gradients: Any, trainable_variables: Any = None) -> None:
        if recorded:
            raise ConfigurationError(
                "The model's train_step applies its optimizer more than once, which cannot be one "
                "atomic step. Apply all gradients in one call."
            )
        variables = trainable_variables or optimizer._trainable_variables
        recorded.update(gradients=list(gradients), variables=list(variables))

    object.__setattr__(optimizer, "apply", record)
    try:
        yield recorded
    finally:
        object.__delattr__(optimizer, "apply")


def _fold_in(state: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """The state of a seed generator (shape [2]) for one micro-batch."""
    folded = tf.random.experimental.stateless_fold_in(tf.cast(state, tf.int64), index)
    # Keras expects numbers that fit into 32 bits and are not negative.
    return tf.cast(tf.bitwise.bitwise_and(folded, MAX_SEED), state.dtype)
