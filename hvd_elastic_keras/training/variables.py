"""Sorts the variables of a compiled Keras model by how a step changes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

KerasVariable = Any  # keras.Variable: not exported with a type that checkers understand
SEED_NAME = "seed_generator_state"


@dataclasses.dataclass(frozen=True)
class ModelVariables:
    """All state of a model that training changes.

    Attributes:
      trainable: changed by the optimizer, from gradients.
      metrics: sums; every micro-batch adds to them.
      averaged: other non-trainable state such as batch-norm statistics; a step moves it by the
        example-weighted mean of what its micro-batches would.
      seeds: states of seed generators; never changed, see `training/step.py`.
      optimizer: slots, iterations, learning rate.
    """

    trainable: tuple[KerasVariable, ...]
    metrics: tuple[KerasVariable, ...]
    averaged: tuple[KerasVariable, ...]
    seeds: tuple[KerasVariable, ...]
    optimizer: tuple[KerasVariable, ...]

    @property
    def all(self) -> tuple[KerasVariable, ...]:
        """Each variable once."""
        every = (*self.trainable, *self.metrics, *self.averaged, *self.seeds, *self.optimizer)
        return tuple({id(v): v for v in every}.values())

    def values(self) -> list[tf.Tensor]:
        """A copy of the present values."""
        return [tf.identity(v.value) for v in self.all]

    def assign(self, values: Iterable[tf.Tensor]) -> None:
        """Sets all values, in the order of `values()`."""
        for variable, value in zip(self.all, values, strict=True):
            variable.value.assign(value)


def variables_of(model: keras.Model) -> ModelVariables:
    """Sorts the variables of a built and compiled model."""
    trainable = tuple(model.trainable_variables)
    taken = {id(v) for v in trainable}
    others = [v for v in model.variables if id(v) not in taken]
    seeds = [v for v in others if _is_seed(v)]
    generator = global_state.get_global_attribute("global_seed_generator")
    if generator is not None:
        seeds.append(generator.state)
    return ModelVariables(
        trainable=trainable,
        metrics=tuple(model.metrics_variables),
        averaged=tuple(v for v in others if not _is_seed(v)),
        seeds=tuple({id(v): v for v in seeds}.values()),
        optimizer=tuple(_optimizer_variables(model.optimizer)),
    )


def _is_seed(variable: KerasVariable) -> bool:
    return bool(variable.path.endswith(SEED_NAME))


def _optimizer_variables(optimizer: Any) -> list[KerasVariable]:
    if optimizer is None:
        return []
    found = list(optimizer.variables)
    inner = getattr(optimizer, "inner_optimizer", None)
    return found + (_optimizer_variables(inner) if inner is not None else [])
