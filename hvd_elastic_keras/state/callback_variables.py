"""Variables that callbacks hold beside the trained model: in models, metrics, generators and so on.

A callback may average weights into a second model, count in a metric, or train a critic. Workers
that come later make these objects themselves, and get the values of their variables.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.keras_internals.model_variables import (
    can_be_sent,
    optimizer_variables,
    unwrapped,
    variables_of,
)
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.packing import Tree

GENERATORS = (keras.random.SeedGenerator, tf.random.Generator)
HOLDERS = (keras.Model, keras.Layer, keras.Metric, keras.Optimizer, *GENERATORS)
MOST_LEVELS = 4
"""Lists and dicts in an attribute are followed so deep."""

Found = dict[str, list[tf.Variable]]


def is_carried(value: Any) -> bool:
    """Whether the variables of a value reach the workers that come later."""
    return isinstance(value, HOLDERS) or can_be_sent(unwrapped(value))


def variables_in(attributes: Mapping[str, Any], model: keras.Model) -> Found:
    """Returns the variables that the attributes of a callback hold.

    Args:
      model: the trained model; its variables are left out, because they are sent anyway.

    Returns:
      Variables by the place of their holder, such as `{"ema": [...], "critics[0]": [...]}`. Other
      workers have the same places.
    """
    holders = {
        place: holder
        for name, value in attributes.items()
        for place, holder in _holders(name, value, MOST_LEVELS)
    }
    known = set(map(id, variables_of(model).all)) if holders else set()
    found = {}
    for place, holder in holders.items():
        variables = [v for v in map(unwrapped, _variables_of(holder)) if id(v) not in known]
        if variables := list(filter(can_be_sent, variables)):
            found[place] = variables
    return found


def encoded(variables: Found) -> Tree:
    """Returns the present values as JSON and bytes."""
    return json_codec.encode({p: [v.numpy() for v in held] for p, held in variables.items()})


def assign(variables: Found, values: Tree) -> dict[str, list[Any]]:
    """Sets variables to the values of the same place on another worker.

    Args:
      values: a result of `encoded`.

    Returns:
      The values for which there are no variables, or others.
    """
    left = {}
    for place, arrays in json_codec.decode(values).items():
        found = variables.get(place, [])
        if [tuple(v.shape) for v in found] != [array.shape for array in arrays]:
            left[place] = arrays
            continue
        for variable, array in zip(found, arrays, strict=True):
            variable.assign(tf.cast(array, variable.dtype))
    return left


def _holders(place: str, value: Any, levels: int) -> Iterator[tuple[str, Any]]:
    if is_carried(value):
        yield place, value
    elif levels and isinstance(value, dict | list | tuple | collections.deque):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _holders(f"{place}[{key}]", inner, levels - 1)


def _variables_of(holder: Any) -> list[Any]:
    if isinstance(holder, keras.Model):
        return list(variables_of(holder).all)
    if isinstance(holder, keras.Optimizer):
        return optimizer_variables(holder)
    if isinstance(holder, GENERATORS):
        return [holder.state]
    return list(getattr(holder, "variables", (holder,)))
