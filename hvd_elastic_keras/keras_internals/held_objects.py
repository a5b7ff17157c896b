"""Finds objects that a Keras model holds in its attributes, also where Keras does not look."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.trainer import Trainer

MUTABLE_TABLES = (
    tf.lookup.experimental.MutableHashTable,
    tf.lookup.experimental.DenseHashTable,
)


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


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns the variables of an optimizer and of inner ones, as in a `LossScaleOptimizer`."""
    inner = [o for o in _held_by(optimizer) if isinstance(o, keras.optimizers.Optimizer)]
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
