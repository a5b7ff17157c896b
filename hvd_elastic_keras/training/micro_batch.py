"""One micro-batch: the user's `train_step` or `test_step`, captured so that it assigns nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.data.structure import Layout, Structure
from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.training import log_values
from hvd_elastic_keras.training.apply_recorder import ApplyRecorder
from hvd_elastic_keras.training.variables import (
    KerasVariable,
    ModelVariables,
    metrics_of,
    optimizers_of,
    unwrapped,
)

Tensors = list[tf.Tensor]
MAX_SEED = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """Sums over micro-batches.

    Attributes:
      gradients: of the variables that have one, weighted by examples.
      staged: shape [n], everything else that adds up, one after the other.
      whole: values of metrics that do not add up, after all micro-batches of the step.
    """

    gradients: Tensors
    staged: tf.Tensor
    whole: Tensors

    @property
    def tensors(self) -> Tensors:
        """All of them."""
        return [*self.gradients, self.staged, *self.whole]

    def copy(self) -> Accumulated:
        """The same values, in tensors that are made here."""
        gradients, whole = ([tf.identity(t) for t in ts] for ts in (self.gradients, self.whole))
        return Accumulated(gradients, tf.identity(self.staged), whole)


class MicroBatch:
    """Computes what one micro-batch contributes to a step, and assigns the sum of all.

    Args:
      model: built and compiled.
      variables: all state of the model.
      layout: the form of a batch.
      train: whether to compute gradients and apply the optimizer.
      whole: metrics that do not add up: they are updated one micro-batch after the other, which
        is right only where a worker computes all micro-batches.
      left_out: metrics that do not add up: they do not occur in the logs.
    """

    def __init__(
        self,
        model: keras.Model,
        variables: ModelVariables,
        layout: Layout,
        *,
        train: bool,
        whole: Sequence[keras.Metric] = (),
        left_out: Sequence[keras.Metric] = (),
    ) -> None:
        self._model = model
        self._train = train
        self._layout = layout
        self._variables = variables
        self._left_out = left_out
        self._whole = [v for metric in whole for v in metric.variables]
        taken = {id(v) for v in self._whole}
        self._metrics = [v for v in variables.metrics if id(v) not in taken]
        self._optimizer: Any = model.optimizer
        self._with_gradient: list[KerasVariable] = []
        self._moved: list[KerasVariable] = []
        self._log_plan = log_values.LogPlan({})
        self._dtypes: list[tuple[Any, Any]] = []
        self._means = np.zeros(sum(int(np.prod(v.shape)) for v in self._metrics), bool)
        self._function: Callable[..., Tensors] = self._compute
        if not model.run_eagerly:
            self._function = self._traced()

    # --- computing -----------------------------------------------------------------------

    def __call__(
        self, data: Tensors, index: tf.Tensor, weight: tf.Tensor, whole: Sequence[tf.Tensor]
    ) -> Tensors:
        """What micro-batch number `index` with `weight` = its examples / all examples adds.

        The result has the form of `zeros()`.
        """
        results = self._function(data, index, weight, list(whole))
        self._dtypes = [(t.shape, t.dtype) for t in results]
        return results

    def _traced(self) -> Callable[..., Tensors]:
        function = tf.function(
            self._compute,
            input_signature=[
                self._layout.flat_spec,
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([], tf.float32),
                [tf.TensorSpec(v.shape, v.dtype) for v in self._whole],
            ],
            jit_compile=True if self._model.jit_compile else None,
            autograph=False,
        )
        concrete = function.get_concrete_function()
        self._dtypes = [(o.shape, o.dtype) for o in concrete.structured_outputs]
        return function  # type: ignore[no-any-return]

    def _compute(
        self, data: Tensors, index: tf.Tensor, weight: tf.Tensor, whole: Tensors
    ) -> Tensors:
        variables = self._variables
        present = [(v, _fold_in(v.value, index)) for v in variables.seeds]
        present += list(zip(self._whole, whole, strict=True))
        raw_before = [tf.identity(v) for v in variables.raw]
        recorder = ApplyRecorder(optimizers_of(self._model) if self._train else [])
        scope = keras.StatelessScope(state_mapping=present, collect_losses=True)
        with self._explained(scope), recorder.recording(), scope:
            for variable in variables.trainable:
                # Keras looks up the argument of a regularizer in the scope alone. The variable
                # itself, not a copy: the gradient tape watches nothing else.
                if variable.regularizer is not None:
                    scope.add_update((variable, variable.value))
            step = self._model.train_step if self._train else self._model.test_step
            logs = step(self._layout.pack(data))
            raw_after = [tf.identity(v) for v in variables.raw]
        self._log_plan, averages = log_values.plan(self._model, logs, self._left_out, scope)
        self._put_back(raw_before, raw_after)
        gradients = self._gradients(recorder, scope)
        changes = _Changes(scope)
        added = [changes.of(v) for v in self._metrics]
        moved = [changes.of(v) * weight for v in self._moved]
        moved += [
            _difference(new, old) * weight for new, old in zip(raw_after, raw_before, strict=True)
        ]
        moved += [tf.cast(value, tf.float32) * weight for value in averages]
        flat = [tf.reshape(t, [-1]) for t in (*added, *moved)]
        # One dtype: a grouped allreduce takes no mixture. Half precision is summed in float32.
        dtype = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
        weighted = [tf.cast(g, dtype) * tf.cast(weight, dtype) for g in gradients]
        staged = tf.cast(tf.concat(flat, 0), dtype) if flat else tf.zeros([0], dtype)
        return [*weighted, staged, *(changes.value(v) for v in self._whole)]

    @contextlib.contextmanager
    def _explained(self, scope: keras.StatelessScope) -> Iterator[None]:
        """Raises `ConfigurationError` if a layer has put a tensor in the place of its weights.

        The gradient tape then asks that tensor for what only a variable has.
        """
        try:
            yield
        except AttributeError as error:
            assigned = [v.path for v in self._variables.trainable if _is_assigned(scope, v)]
            if not assigned:
                raise
            raise ConfigurationError(
                f"A layer assigns to its trainable weight {assigned[0]} while it computes, as "
                "keras.layers.SpectralNormalization does, expected a layer that leaves its weights "
                "to the optimizer: a step must not change anything before all workers have "
                "computed their part. Use the changed value without assigning it."
            ) from error

    def _put_back(self, before: Tensors, after: Tensors) -> None:
        """Takes back what the step assigned past Keras: it counts only once all have it."""
        with tf.control_dependencies(after):
            for variable, value in zip(self._variables.raw, before, strict=True):
                variable.assign(value)

    def _gradients(self, recorder: ApplyRecorder, scope: keras.StatelessScope) -> Tensors:
        """The recorded gradients; and which other variables the step moves by itself."""
        trainable = self._variables.trainable if self._train else ()
        by_hand = [v for v in trainable if _is_assigned(scope, v)]
        self._moved = [*by_hand, *(self._variables.averaged if self._train else ())]
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
        return [tf.convert_to_tensor(g) for g, _ in pairs]

    # --- trials --------------------------------------------------------------------------

    def trial(self, batch: Structure) -> Accumulated:
        """What a batch as one micro-batch would add; nothing is assigned."""
        results = self(
            self._layout.flatten(batch),
            tf.constant(0, tf.int64),
            tf.constant(1.0),
            self.whole_of(()),
        )
        return self.accumulated(results)

    def average(self, means: npt.NDArray[np.bool_]) -> None:
        """Averages these of the `parts_by_metric` from now on, where others are added."""
        self._means = means

    def parts_by_metric(self) -> list[slice]:
        """Where the variables of each metric are in `Accumulated.staged`; they lie side by side."""
        owner = {id(v): id(m) for m in metrics_of(self._model) for v in m.variables}
        parts: list[slice] = []
        start = 0
        for _, group in itertools.groupby(self._metrics, lambda v: owner.get(id(v), id(v))):
            size = sum(int(np.prod(v.shape)) for v in group)
            parts.append(slice(start, start + size))
            start += size
        return parts

    # --- summing -------------------------------------------------------------------------

    def zeros(self) -> Tensors:
        """The sums before the first micro-batch."""
        if not self._dtypes:
            return []  # run eagerly, and nothing has run yet
        shapes = self._dtypes[: len(self._dtypes) - len(self._whole)]
        return [*(tf.zeros(*s) for s in shapes), *(tf.identity(v.value) for v in self._whole)]

    def weighted(self, results: Tensors, weight: tf.Tensor) -> Tensors:
        """The results of a micro-batch as they are to be added: some metrics are averaged."""
        if not self._means.any():
            return results
        index = len(results) - len(self._whole) - 1
        staged = results[index]
        share = tf.cast(weight, staged.dtype)
        scale = tf.where(self._means, share, tf.ones_like(share))
        rest = tf.ones_like(staged[self._means.size :])
        scaled = staged * tf.concat([scale, rest], 0)
        return [*results[:index], scaled, *results[index + 1 :]]

    def add(self, sums: Sequence[tf.Tensor], results: Sequence[tf.Tensor]) -> Tensors:
        """The sums after one more micro-batch, whose results are weighted."""
        if not sums:
            return list(results)
        split = len(results) - len(self._whole)
        added = [s + r for s, r in zip(sums[:split], results[:split], strict=True)]
        return [*added, *results[split:]]

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
        shapes = [*(v.shape for v in changed), *([()] * self._log_plan.num_averages)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        parts = tf.split(total.staged, sizes) if sizes else []
        if self._with_gradient:
            cast = [
                tf.cast(g, v.dtype)
                for g, v in zip(total.gradients, self._with_gradient, strict=True)
            ]
            self._optimizer.apply(cast, self._with_gradient)
        for variable, part in zip(changed, parts, strict=False):
            _move(unwrapped(variable), tf.reshape(part, variable.shape))
        for variable, value in zip(self._whole, total.whole, strict=True):
            variable.value.assign(value)
        return [tf.reshape(part, []) for part in parts[len(changed) :]]

    def logs(self, averages: Tensors) -> dict[str, Any]:
        """What `train_step` would have returned for the whole global batch."""
        return self._log_plan.values(self._model, averages)


class _Changes:
    """What a step in a `keras.StatelessScope` would have changed."""

    def __init__(self, scope: keras.StatelessScope) -> None:
        self._scope = scope

    def value(self, variable: KerasVariable) -> tf.Tensor:
        """The value a variable would have now."""
        new = self._scope.get_current_value(variable)
        return tf.identity(variable.value) if new is None else unwrapped(new)

    def of(self, variable: KerasVariable) -> tf.Tensor:
        """The difference to the value it has, float32."""
        new = self._scope.get_current_value(variable)
        if new is None:
            return tf.zeros(variable.shape, tf.float32)
        return _difference(new, variable.value)


def _difference(new: Any, old: Any) -> tf.Tensor:
    # Large counters would lose their last digits in float32, and bool has no difference.
    wide = tf.float32 if old.dtype.is_floating else tf.int64
    wide = tf.float64 if old.dtype == tf.float64 else wide
    return tf.cast(tf.cast(new, wide) - tf.cast(old, wide), tf.float32)


def _move(variable: tf.Variable, difference: tf.Tensor) -> None:
    if variable.dtype.is_floating:
        variable.assign_add(tf.cast(difference, variable.dtype))
    else:
        moved = tf.cast(variable, tf.int64) + tf.cast(tf.round(difference), tf.int64)
        variable.assign(tf.cast(moved, variable.dtype))


def _is_assigned(scope: keras.StatelessScope, variable: KerasVariable) -> bool:
    """Whether the step itself assigned a weight, without any optimizer."""
    new = scope.get_current_value(variable)
    return new is not None and new is not variable.value


def _fold_in(state: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """The state of a seed generator (shape [2]) for one micro-batch."""
    folded = tf.random.experimental.stateless_fold_in(tf.cast(state, tf.int64), index)
    # Keras expects numbers that fit into 32 bits and are not negative.
    return tf.cast(tf.bitwise.bitwise_and(folded, MAX_SEED), state.dtype)
