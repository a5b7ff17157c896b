"""Keeps the compiled steps of a model from one `fit` to the next, as Keras keeps its functions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras

from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.keras_internals.model_variables import (
    ModelVariables,
    Trainable,
    variables_of,
)
from hvd_elastic_keras.step.deterministic_step import DeterministicStep
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.step_options import PLAIN, StepOptions
from hvd_elastic_keras.step.world import world_of_process

ATTRIBUTE = "_elastic_steps"


def compiled_step(
    model: keras.Model,
    variables: ModelVariables,
    source: Input,
    *,
    train: bool,
    seed: int = 0,
    deterministic: bool = False,
    options: StepOptions = PLAIN,
) -> PartitionedStep:
    """Returns the step of a model for an input; the one of an earlier call if nothing has changed.

    Keras makes a new `train_function` after `compile`; this makes the kept steps void. Until then,
    Keras goes on with the graph it has traced, even if `trainable` or other attributes have changed
    meanwhile. The kept steps do the same.

    Args:
      seed: seed of stateful random operations.

    Raises:
      ConfigurationError: the step makes variables, or does something that no other worker can
        repeat.
    """
    if source.micro_batch_size >= source.global_batch_size:
        options = dataclasses.replace(options, together=None)
    form = repr(source.batch_spec), source.per_row, source.global_batch_size, source.has_one_size
    key = (train, deterministic, options, seed, form)
    steps = _kept_with(model)
    if key not in steps.made:
        kind = DeterministicStep if deterministic else PartitionedStep
        with steps.as_first_traced(model):
            steps.made[key] = kind(
                model,
                variables,
                Layout(source.batch_spec, source.per_row),
                world_of_process(),
                train=train,
                num_rows=source.global_batch_size,
                has_one_size=source.has_one_size,
                seed=seed,
                options=options,
            )
    return steps.made[key]


def variables_kept(model: keras.Model) -> ModelVariables:
    """Returns the variables of a training: of the kept steps, and new ones of the model."""
    kept, present = _kept_with(model), variables_of(model)
    if kept.variables is None or not kept.made:
        kept.variables = present
        return present
    known = {id(v) for v in kept.variables.all}
    new = [v for v in present.all if id(v) not in known]
    return dataclasses.replace(kept.variables, given=(*kept.variables.given, *new))


def trainable_in_steps(model: keras.Model) -> Trainable | None:
    """Returns which layers train in the steps of a model.

    Returns it once for the steps of a `train_function`, then None.
    """
    kept = _kept_with(model)
    told, kept.is_told = kept.is_told, True
    return None if told else kept.trainable


@dataclasses.dataclass
class _Kept:
    """The steps of a model, kept as long as Keras keeps the model's `train_function`.

    Attributes:
      function: the model's `train_function`.
      made: the steps, by the arguments that they were made for.
      variables: the variables that the steps were made with.
      trainable: whether each layer and variable was trained when the first step was made.
      is_told: whether `trainable_in_steps` has been called.
    """

    function: Any
    made: dict[Any, PartitionedStep] = dataclasses.field(default_factory=dict)
    variables: ModelVariables | None = None
    trainable: Trainable | None = None
    is_told: bool = False

    @contextlib.contextmanager
    def as_first_traced(self, model: keras.Model) -> Iterator[None]:
        """Makes the same layers trainable as in the first step, while this lasts."""
        present = Trainable.of(model)
        if self.trainable is None or not self.made:
            self.trainable = present
        self.trainable.set()
        try:
            yield
        finally:
            present.set()


def _kept_with(model: keras.Model) -> _Kept:
    function = model.train_function
    kept = model.__dict__.get(ATTRIBUTE)
    if function is None or kept is None or kept.function is not function:
        kept = _Kept(function)
        # Past Keras, which would track it as an attribute.
        object.__setattr__(model, ATTRIBUTE, kept)
    return kept  # type: ignore[no-any-return]
