"""Values outside of a callback that its code uses: global ones, and those of enclosing functions.

People keep lists, counters and second models there, above all with `LambdaCallback`:

    losses = []
    keep = LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))

Code of the user's files is followed into the functions that it calls.
"""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import is_users_file
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.packing import Tree

MOST_BYTES = 4 << 20
"""Larger values are taken for data that no callback changes."""


@dataclasses.dataclass(frozen=True)
class Outside:
    """The place of a value outside of a callback.

    Attributes:
      names: the globals of a module, or the variable of an enclosing function.
      name: the name of a global.
    """

    names: dict[str, Any] | types.CellType
    name: str = ""

    @property
    def value(self) -> Any:
        """The present value."""
        if isinstance(self.names, dict):
            return self.names[self.name]
        return self.names.cell_contents

    def set(self, value: Any) -> None:
        """Sets the value. A list, dict, set or array stays the same object: others may hold it."""
        if replace_content(self.value, value):
            return
        if isinstance(self.names, dict):
            self.names[self.name] = value
        else:
            self.names.cell_contents = value


def outside_of(callback: keras.callbacks.Callback) -> dict[str, Outside]:
    """Returns the places that the code of a callback names, by names that all workers share."""
    found: dict[str, Outside] = {}
    todo = list(_functions_of(callback))
    seen: set[types.CodeType] = set()
    while todo:
        function = todo.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for name, place in _named_in(function):
            if isinstance(place.value, types.FunctionType) and _is_users(place.value):
                todo.append(place.value)
            found[name] = place
    return found


def encoded(places: dict[str, Outside]) -> dict[str, Tree]:
    """Returns the present values as JSON and bytes, as far as they can be encoded."""
    found = {}
    for name, place in places.items():
        value = place.value
        if isinstance(value, types.FunctionType | types.ModuleType) or _size(value) > MOST_BYTES:
            continue
        try:
            found[name] = json_codec.encode(value)
        except json_codec.NotEncodableError:
            continue  # an object of a class, which the same script makes on all workers
    return found


def _functions_of(callback: keras.callbacks.Callback) -> Iterator[types.FunctionType]:
    members = [m for kind in type(callback).__mro__ for m in vars(kind).values()]
    for member in (*members, *vars(callback).values()):
        function = getattr(member, "fget", member)  # a property
        function = getattr(function, "__func__", function)  # a method
        if isinstance(function, types.FunctionType) and _is_users(function):
            yield function


def _is_users(function: types.FunctionType) -> bool:
    return is_users_file(function.__code__.co_filename)


def _named_in(function: types.FunctionType) -> Iterator[tuple[str, Outside]]:
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            module = function.__globals__.get("__name__", "")
            yield f"{module}.{name}", Outside(function.__globals__, name)
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:
            continue  # it has no value yet
        yield f"{function.__qualname__}.{name}", Outside(cell)


def _global_names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names, *(name for c in inner for name in _global_names(c))}


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, tf.Tensor):
        return int(value.dtype.size * tf.size(value))
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values())) + 64 * len(value)
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return sum(map(_size, value)) + 8 * len(value)
    return 8


def replace_content(present: Any, value: Any) -> bool:
    """Gives a container the content of another of its type. Returns whether it could be done."""
    if type(present) is not type(value):
        return False
    if isinstance(present, list):
        present[:] = value
    elif isinstance(present, dict | set):
        present.clear()
        present.update(value)
    elif isinstance(present, collections.deque) and present.maxlen == value.maxlen:
        present.clear()
        present.extend(value)
    elif isinstance(present, np.ndarray) and _form_of(present) == _form_of(value):
        present[...] = value
    else:
        return False
    return True


def _form_of(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.flags.writeable
