"""Why a model cannot be trained by several workers, found while a micro-batch is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.apply_recorder import TWICE, ApplyRecorder
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.step.micro_batches.random_draws import unknown_draws
from hvd_elastic_keras.step.micro_batches.staged_changes import is_assigned


def check_variables(variables: ModelVariables, model: keras.Model, before: set[int]) -> None:
    """Raises `ConfigurationError` if tracing has made variables: nobody would train them."""
    new = [v.path for v in variables.new_in(model, before)]
    if new:
        raise ConfigurationError(
            f"The model makes variables while it is trained: {', '.join(new[:5])}. Expected "
            "all of them to be there before the first step, so that all workers have the "
            "same. Call the layers or metrics once before fit, for example with "
            "model.build(input_shape), or make them in __init__ or build()."
        )


def check_draws(nodes: Iterable[Any]) -> None:
    """Raises `ConfigurationError` for random operations that other workers cannot repeat."""
    unknown = unknown_draws(nodes)
    for name, kind in unknown.items():
        raise ConfigurationError(refused_draw(name, kind))


def refused_draw(name: str, kind: str) -> str:
    """What to say of a random operation that other workers cannot repeat."""
    return (
        f"The model draws random numbers with the operation {kind} ({name}), which cannot be made "
        "the same on all workers, expected keras.random, with or without a SeedGenerator, or "
        "tf.random.stateless_*. (A tf.random.Generator and tf.raw_ops are such cases.)"
    )


def check_assignments(dropped: Sequence[str]) -> None:
    """Raises `ConfigurationError` for variables that a step assigns, and that would not change."""
    if dropped:
        raise ConfigurationError(
            f"The step assigns to {', '.join(dropped[:5])}, which belongs to an optimizer or to no "
            "layer or metric of the model, so that the assignment would be lost. Expected a step "
            "that assigns to variables of the model only. To change the learning rate, use a "
            "keras.optimizers.schedules.LearningRateSchedule, or assign in a callback "
            "(on_train_batch_begin)."
        )


@contextlib.contextmanager
def explained(
    variables: ModelVariables, scope: keras.StatelessScope, recorder: ApplyRecorder
) -> Iterator[None]:
    """Raises `ConfigurationError` if a layer has put a tensor in the place of its weights.

    The gradient tape then asks that tensor for what only a variable has.
    """
    try:
        yield
    except AttributeError as error:
        if recorder.calls:  # a gradient tape over weights as they are after `apply`
            raise ConfigurationError(TWICE) from error
        assigned = [v.path for v in variables.trainable if is_assigned(scope, v, recorder)]
        if not assigned:
            raise
        raise ConfigurationError(
            f"A layer assigns to its trainable weight {assigned[0]} while it computes, as "
            "keras.layers.SpectralNormalization does, expected a layer that leaves its weights "
            "to the optimizer: a step must not change anything before all workers have "
            "computed their part. Use the changed value without assigning it."
        ) from error
