"""Sorts the variables of a compiled Keras model by how a step changes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.trainers.compile_utils import CompileMetrics

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
      raw: `tf.Variable`s that the user's layers hold beside Keras's; moved like `averaged`.
    """

    trainable: tuple[KerasVariable, ...]
    metrics: tuple[KerasVariable, ...]
    averaged: tuple[KerasVariable, ...]
    seeds: tuple[KerasVariable, ...]
    optimizer: tuple[KerasVariable, ...]
    raw: tuple[tf.Variable, ...] = ()

    @property
    def all(self) -> tuple[tf.Variable, ...]:
        """Each variable once, as TensorFlow's."""
        keras_variables = (
            *(*self.trainable, *self.metrics, *self.averaged),
            *(*self.seeds, *self.optimizer),
        )
        every = [*(v.value for v in keras_variables), *self.raw]
        return tuple({id(v): v for v in every}.values())

    def values(self) -> list[tf.Tensor]:
        """A copy of the present values."""
        return [tf.identity(v) for v in self.all]

    def assign(self, values: Iterable[tf.Tensor]) -> None:
        """Sets all values, in the order of `values()`."""
        for variable, value in zip(self.all, values, strict=True):
            variable.assign(value)


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
        optimizer=tuple(v for o in optimizers_of(model) for v in optimizer_variables(o)),
        raw=tuple(_raw_variables(model)),
    )


def optimizers_of(model: keras.Model) -> list[Any]:
    """The model's optimizer, and others it holds as attributes."""
    held = [model.optimizer, *_values_in(model)]
    found = {id(o): o for o in held if isinstance(o, keras.optimizers.Optimizer)}
    return list(found.values())


def metrics_of(model: keras.Model) -> list[keras.Metric]:
    """Single metrics, not the collection that holds those given to `compile`."""
    found: list[keras.Metric] = []
    for metric in model.metrics:
        found += metric.metrics if isinstance(metric, CompileMetrics) else [metric]
    return [m for m in found if m.variables]


def unwrapped(value: Any) -> Any:
    """TensorFlow's variable inside a Keras variable; anything else as it is."""
    return value.value if isinstance(value, keras.Variable) else value


def _is_seed(variable: KerasVariable) -> bool:
    return bool(variable.path.endswith(SEED_NAME))


def optimizer_variables(optimizer: Any) -> list[KerasVariable]:
    """Those of an optimizer and of the one inside it, as in a `LossScaleOptimizer`."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*optimizer.variables, *(optimizer_variables(inner) if inner is not None else [])]


def _raw_variables(model: keras.Model) -> list[tf.Variable]:
    held = [value for layer in model._flatten_layers() for value in _values_in(layer)]
    return list({id(v): v for v in held if isinstance(v, tf.Variable)}.values())


def _values_in(owner: Any) -> list[Any]:
    """An object's attributes, and what is in those that are lists or dicts."""
    values: list[Any] = []
    for value in vars(owner).values():
        if isinstance(value, list | tuple):
            values += value
        elif isinstance(value, dict):
            values += value.values()
        else:
            values.append(value)
    return values
