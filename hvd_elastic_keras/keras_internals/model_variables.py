"""The variables that a training changes, in groups, in the same order in every process.

`Trainable` says which layers and variables of a model are trained.

`held_in` finds objects that a Keras model holds in its attributes, also where Keras does not look.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.layers.preprocessing.index_lookup import IndexLookup
from keras.src.trainers.trainer import Trainer

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.global_seed import global_seed

KerasVariable = Any  # keras.Variable: not exported with a type that checkers understand
Groups = dict[str, list[tf.Variable]]
"""Variables by name of the group, each once."""
METRICS = "metrics"
OPTIMIZER = "optimizer"
RAW = "raw"
GROUPS = ("layers", METRICS, OPTIMIZER, RAW, "given")

MUTABLE_TABLES = (
    tf.lookup.experimental.MutableHashTable,
    tf.lookup.experimental.DenseHashTable,
)


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

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Gives the variables their present values back at the end of a `with` block."""
        before = self.values()
        try:
            yield
        finally:
            self.assign(before)


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


@dataclasses.dataclass(frozen=True, eq=False)
class Trainable:
    """The attribute `trainable` of all layers and variables of a model at some time."""

    values: Sequence[tuple[Any, bool]]

    @classmethod
    def of(cls, model: keras.Model) -> Trainable:
        """Returns the present values."""
        # Outer layers come first: setting one sets all layers in it.
        owners = [*layers_of(model), *model.variables]
        return cls([(owner, bool(owner.trainable)) for owner in owners])

    @property
    def changed(self) -> list[str]:
        """The names of layers and variables whose value is different now."""
        return [owner.name for owner, value in self.values if bool(owner.trainable) != value]

    def set(self) -> None:
        """Restores the values. Does nothing if no value has changed."""
        if self.changed:
            for owner, value in self.values:
                owner.trainable = value


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns all layers at all depths, including the model itself."""
    return list(model._flatten_layers())


def optimizers_of(model: keras.Model) -> list[Any]:
    """Returns the model's optimizer, and other optimizers that it or its layers hold."""
    return optimizers_among(held_in(model), model)


def optimizers_among(held: Iterable[Any], model: keras.Model) -> list[Any]:
    """As `optimizers_of`, if the held objects are known."""
    every = [getattr(model, "optimizer", None), *held]
    found = {id(o): o for o in every if isinstance(o, keras.optimizers.Optimizer)}
    return list(found.values())


def inner_optimizers(optimizer: Any) -> list[Any]:
    """Returns the optimizers that another one holds, as a `LossScaleOptimizer` does."""
    return [o for o in _held_by(optimizer) if isinstance(o, keras.optimizers.Optimizer)]


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns the variables of an optimizer and of inner ones."""
    inner = inner_optimizers(optimizer)
    return [*optimizer.variables, *(v for o in inner for v in optimizer_variables(o))]


def metrics_among(held: Iterable[Any], model: keras.Model) -> list[keras.Metric]:
    """Returns all metrics, some of which are in collections.

    A user may override `metrics`, and Keras leaves out the metrics of a model within the model.
    """
    own = [v for v in held if isinstance(v, keras.Metric)]
    compiled = [m for v in held if isinstance(v, Trainer) for m in v._get_own_metrics()]
    return list({id(m): m for m in (*model.metrics, *compiled, *own)}.values())


def held_in(model: keras.Model) -> list[Any]:
    """Returns each object once that the model and its layers hold; see `_held_by`.

    This includes layers that Keras does not know of: a `Sequential` lists none of its attributes.
    """
    found: dict[int, Any] = {}
    todo = layers_of(model)
    seen = {id(layer) for layer in todo}
    while todo:
        held = list(_held_by(todo.pop(0)))
        found |= {id(value): value for value in held}
        layers = [v for v in held if isinstance(v, keras.layers.Layer) and id(v) not in seen]
        seen |= {id(layer) for layer in layers}
        todo += layers
    return list(found.values())


def _held_by(owner: Any) -> Iterator[Any]:
    """Yields an object's attributes. Containers are replaced by their content, at any depth."""
    seen: set[int] = set()
    todo = collections.deque(vars(owner).values())
    while todo:
        value = todo.popleft()
        content = _content_of(value.__class__)  # not its `type`: TensorFlow wraps tuples
        if content is None:
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            todo.extend(content(value))


@functools.cache
def _content_of(kind: type) -> Callable[[Any], Iterable[Any]] | None:
    """Returns a function that gives the content of a container or a record; None for others."""
    if issubclass(kind, Mapping):
        return lambda value: value.values()
    if issubclass(kind, set | frozenset):
        return _in_order_of_names
    if issubclass(kind, list | tuple | collections.deque):
        return iter
    if issubclass(kind, types.SimpleNamespace | tf.Module):
        return lambda value: vars(value).values()
    if dataclasses.is_dataclass(kind):
        return lambda value: [getattr(value, f.name, None) for f in dataclasses.fields(value)]
    return None


def _in_order_of_names(values: Iterable[Any]) -> list[Any]:
    """Sorts the values of a set, whose own order differs between processes."""
    return sorted(values, key=lambda value: str(getattr(value, "name", "")))
