"""Keeps the compiled steps of a model from one `fit` to the next, as Keras keeps its functions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras

from hvd_elastic_keras.data import structure
from hvd_elastic_keras.data.pipeline import Input
from hvd_elastic_keras.training.deterministic_step import DeterministicStep
from hvd_elastic_keras.training.step import AtomicStep
from hvd_elastic_keras.training.trial import try_halves
from hvd_elastic_keras.training.variables import ModelVariables
from hvd_elastic_keras.training.world import World

ATTRIBUTE = "_elastic_steps"


def compiled_step(
    model: keras.Model,
    variables: ModelVariables,
    source: Input,
    *,
    train: bool,
    unshared: Sequence[keras.Metric],
    deterministic: bool = False,
    measured_workers: int = 0,
    scales_rate: bool = False,
) -> AtomicStep:
    """The step of a model for an input: that of an earlier call if nothing has changed since.

    Keras makes a new `train_function` after `compile`; with it, the kept steps become void.
    """
    key = (
        train,
        deterministic,
        measured_workers,
        scales_rate,
        repr(source.batch_spec),
        tuple(id(v) for v in variables.all),
        tuple(id(m) for m in unshared),
    )
    steps = _steps_of(model)
    if key not in steps:
        kind = DeterministicStep if deterministic else AtomicStep
        step = kind(
            model,
            variables,
            source.batch_spec,
            world_of_process(),
            train=train,
            unshared=unshared,
            measured_workers=measured_workers,
            scales_rate=scales_rate,
        )
        # Two examples at least, also where micro-batches have one: halves are compared.
        examples = structure.cut(source.first_batch(), 0, max(2, source.micro_batch_size))
        try_halves(step.micro_batch, examples)
        steps[key] = step
    return steps[key]


@functools.cache
def world_of_process() -> World:
    """What all compiled steps of this process read."""
    return World()


def _steps_of(model: keras.Model) -> dict[Any, AtomicStep]:
    function = model.train_function
    kept = model.__dict__.get(ATTRIBUTE)
    if function is None or kept is None or kept[0] is not function:
        kept = (function, {})
        # Not an attribute that Keras tracks.
        object.__setattr__(model, ATTRIBUTE, kept)
    return kept[1]  # type: ignore[no-any-return]
