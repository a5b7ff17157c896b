"""The variables that a training changes, in groups, in the same order in every process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.layers.preprocessing.index_lookup import IndexLookup

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.global_seed import global_seed
from hvd_elastic_keras.keras_internals.held_objects import (
    MUTABLE_TABLES,
    held_in,
    metrics_among,
    optimizer_variables,
    optimizers_among,
)

KerasVariable = Any  # keras.Variable: not exported with a type that checkers understand
Groups = dict[str, list[tf.Variable]]
"""Variables by name of the group, each once."""
METRICS = "metrics"
OPTIMIZER = "optimizer"
RAW = "raw"
GROUPS = ("layers", METRICS, OPTIMIZER, RAW, "given")


@dataclasses.dataclass(frozen=True)
class ModelVariables:
    """All state of a training that is in variables.

    Attributes:
      trainable: changed by the optimizer, from gradients.
      metrics: the states of metrics.
      optimizer: slots, iterations and learning rates of all optimizers.
      raw: `tf.Variable`s that the user's layers hold beside Keras's variables.
      given: variables of a training loop that are in no model.
      layers: all variables of layers, including the trainable ones and Keras's global seed, in an
        order that does not change when layers are frozen.
      lost: names of objects that the layers hold, but that cannot be sent to other workers.
    """

    trainable: tuple[KerasVariable, ...] = ()
    metrics: tuple[KerasVariable, ...] = ()
    optimizer: tuple[KerasVariable, ...] = ()
    raw: tuple[tf.Variable, ...] = ()
    given: tuple[tf.Variable, ...] = ()
    layers: tuple[KerasVariable, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def groups(self) -> Groups:
        """TensorFlow's variables by group, each once, in the same order in every process."""
        groups: Groups = {}
        taken: list[tf.Variable] = []
        for name in GROUPS:
            groups[name] = _without(map(unwrapped, getattr(self, name)), taken)
            taken += groups[name]
        return groups

    @property
    def all(self) -> tuple[tf.Variable, ...]:
        """The variables of all groups, in the order of the groups."""
        return tuple(v for group in self.groups.values() for v in group)

    @property
    def num_bytes(self) -> int:
        """The size of all variables."""
        return sum(int(v.dtype.size) * int(v.shape.num_elements()) for v in self.all)

    @staticmethod
    def present(model: keras.Model) -> set[int]:
        """Returns the identities of the variables of a model."""
        return {id(v) for v in _state_of(model)}

    @staticmethod
    def check_nothing_new(model: keras.Model, before: set[int]) -> None:
        """Raises `ConfigurationError` if tracing has made variables: nobody would train them.

        Args:
          before: the result of `present` before tracing.
        """
        new = [v.path for v in _state_of(model) if id(v) not in before]
        if new:
            raise ConfigurationError(
                f"The model makes variables while it is trained: {', '.join(new[:5])}. Expected "
                "all of them to be there before the first step, so that all workers have the "
                "same. Call the layers or metrics once before fit, for example with "
                "model.build(input_shape), or make them in __init__ or build()."
            )

    def with_given(self, others: Iterable[tf.Variable]) -> ModelVariables:
        """Returns these and other variables of a training loop, which are in no model."""
        return dataclasses.replace(self, given=(*self.given, *_without(others, self.given)))

    def values(self) -> list[tf.Tensor]:
        """Returns a copy of the present values."""
        return [tf.identity(v) for v in self.all]

    def assign(self, values: Iterable[tf.Tensor]) -> None:
        """Sets all values, in the order of `values()`."""
        for variable, value in zip(self.all, values, strict=True):
            variable.assign(value)


def variables_of(
    model: keras.Model | None, optimizer: Any = None, given: Iterable[tf.Variable] = ()
) -> ModelVariables:
    """Sorts the variables that exist now into groups.

    Args:
      model: a model that is built; None if there is no model.
      optimizer: an optimizer beside the ones that the model holds.
      given: other variables.
    """
    found = ModelVariables() if model is None else _of_model(model)
    others = () if optimizer is None else optimizer_variables(optimizer)
    return dataclasses.replace(found, optimizer=(*found.optimizer, *others), given=tuple(given))


def can_be_sent(variable: Any) -> bool:
    """Whether an object is a numeric variable of a fixed shape."""
    return (
        isinstance(variable, tf.Variable)
        and variable.dtype.is_numpy_compatible
        and variable.dtype not in (tf.string, tf.variant, tf.resource)
        and variable.shape.is_fully_defined()
    )


def unwrapped(value: Any) -> Any:
    """Returns TensorFlow's variable inside a Keras variable, and any other object as it is."""
    return value.value if isinstance(value, keras.Variable) else value


def _of_model(model: keras.Model) -> ModelVariables:
    held = held_in(model)
    trainable = model.trainable_variables
    metrics = [v for metric in metrics_among(held, model) for v in metric.variables]
    optimizer = [v for o in optimizers_among(held, model) for v in optimizer_variables(o)]
    known = [*model.variables, *_untracked(held), global_seed()]
    return ModelVariables(
        trainable=tuple(trainable),
        metrics=tuple(metrics),
        optimizer=tuple(optimizer),
        raw=tuple(filter(can_be_sent, held)),
        layers=tuple(_without(known, [*metrics, *optimizer])),
        lost=tuple(_lost(held)),
    )


def _without(variables: Iterable[Any], taken: Iterable[Any] = ()) -> list[Any]:
    """Returns the variables that are not taken, each once."""
    ids = {id(v) for v in taken}
    return list({id(v): v for v in variables if id(v) not in ids}.values())


def _untracked(held: Iterable[Any]) -> list[KerasVariable]:
    """Returns variables and seeds of Keras, also from containers in which Keras does not look."""
    kinds = (keras.Variable, keras.random.SeedGenerator)
    found = [v for v in held if isinstance(v, kinds)]
    return [v if isinstance(v, keras.Variable) else v.state for v in found]


def _lost(held: Sequence[Any]) -> list[str]:
    found = []
    # Layers of Keras count tokens only in `adapt`, never while they train.
    counts = {
        id(v) for layer in held if isinstance(layer, IndexLookup) for v in vars(layer).values()
    }
    for value in held:
        if id(value) in counts:
            continue
        if isinstance(value, tf.Variable) and not can_be_sent(value):
            found.append(f"{value.name} ({value.dtype.name} {value.shape})")
        elif isinstance(value, (*MUTABLE_TABLES, tf.random.Generator)):
            found.append(f"a tf.{type(value).__name__}")
    return found


def _state_of(model: keras.Model) -> list[KerasVariable]:
    return [*model.variables, *model.metrics_variables]
