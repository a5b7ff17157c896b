"""Values outside of a callback that its code uses: globals, enclosing variables, other objects.

People keep lists, counters and second models there, above all with `LambdaCallback`:

    losses = []
    keep = LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))

Code of the user's files is followed into the functions that it calls, and into objects of the
user's own classes. Attributes of the model are found that a callback has set (`self.model.wait`),
as well as the state of the generators `random` and `np.random`.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import random
import types
from collections.abc import Container, Iterator
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import is_users_file
from hvd_elastic_keras.state import json_codec
from hvd_elastic_keras.state.packing import Tree

MOST_BYTES = 4 << 20
"""Larger values are taken for data that no callback changes."""
MOST_LEVELS = 3
"""Objects of the user's classes are followed so deep."""
OF_MODEL = "model."
"""Begins the names of attributes of the model."""
OF_KERAS = frozenset({"built", "history", "loss", "optimizer", "stop_training", *dir(keras.Model)})
"""Attributes of every model."""


class Place(Protocol):
    """Where a value is."""

    @property
    def value(self) -> Any:
        """The present value."""

    def set(self, value: Any) -> None:
        """Sets the value. A list, dict, set or array stays the same object: others may hold it."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A global of a module, or an attribute of an object."""

    names: dict[str, Any]
    name: str

    @property
    def value(self) -> Any:
        """See `Place`."""
        return self.names[self.name]

    def set(self, value: Any) -> None:
        """See `Place`."""
        if not replace_content(self.value, value):
            self.names[self.name] = value


@dataclasses.dataclass(frozen=True)
class Attribute:
    """An attribute of a class, or a variable of an enclosing function (of its cell)."""

    owner: Any
    name: str = "cell_contents"

    @property
    def value(self) -> Any:
        """See `Place`."""
        return getattr(self.owner, self.name)

    def set(self, value: Any) -> None:
        """See `Place`."""
        if not replace_content(self.value, value):
            setattr(self.owner, self.name, value)


class PythonRandom:
    """The state of the module `random`."""

    value = property(lambda self: random.getstate())

    def set(self, value: Any) -> None:
        """See `Place`."""
        random.setstate(value)


class NumpyRandom:
    """The state of `np.random`."""

    value = property(lambda self: np.random.get_state())

    def set(self, value: Any) -> None:
        """See `Place`."""
        np.random.set_state(value)


GENERATORS: dict[str, Place] = {"random": PythonRandom(), "numpy.random": NumpyRandom()}
GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand)


def outside_of(
    callback: keras.callbacks.Callback, model: keras.Model, called: str = ""
) -> dict[str, Place]:
    """Returns the places that the code of a callback uses, by names that all workers share.

    Args:
      called: the name of the callback; by default, that of its class.
    """
    called = called or type(callback).__name__
    found: dict[str, Place] = {}
    names: set[str] = set()
    todo = list(_functions_of(callback))
    seen: set[types.CodeType] = set()
    while todo:
        function = todo.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        names |= _names_in(function.__code__)
        for name, place in _named_in(function):
            if isinstance(place.value, types.FunctionType) and _is_users(place.value):
                todo.append(place.value)
            elif inspect.isclass(place.value):
                todo += filter(_is_users, _functions_in(place.value))
            found[name] = place
    values = {name: place.value for name, place in found.items()}
    values |= {f"{called}.{name}": value for name, value in vars(callback).items()}
    for name, value in values.items():
        found |= dict(_inside(name, value, names, MOST_LEVELS))
    for name in names & vars(model).keys() - OF_KERAS:
        if not name.startswith("_"):
            found[OF_MODEL + name] = Entry(vars(model), name)
    if _draws(names, found):
        found |= GENERATORS
    return found


def encoded(places: dict[str, Place]) -> dict[str, Tree]:
    """Returns the present values as JSON and bytes, as far as they can be encoded."""
    found = {}
    for name, place in places.items():
        value = _plain(place.value)
        if isinstance(value, types.FunctionType | types.ModuleType) or _size(value) > MOST_BYTES:
            continue
        try:
            found[name] = json_codec.encode(value)
        except json_codec.NotEncodableError:
            continue  # an object that the same script makes on all workers
    return found


def is_carried(name: str, places: dict[str, Place], sent: Container[str]) -> bool:
    """Whether an object is one of the user's whose attributes are all among the places sent."""
    inner = [other for other in places if other.startswith(f"{name}.")]
    return bool(inner) and all(n in sent or is_carried(n, places, sent) for n in inner)


def iterators_in(places: dict[str, Place]) -> dict[str, str]:
    """Returns the kinds of iterators among the values. Their position cannot be sent."""
    values = {name.removeprefix("__main__."): place.value for name, place in places.items()}
    return {
        name: f"a {type(value).__name__}"
        for name, value in values.items()
        if isinstance(value, Iterator) and not hasattr(value, "fileno")
    }


def _functions_of(callback: keras.callbacks.Callback) -> Iterator[types.FunctionType]:
    own = [m for member in vars(callback).values() for m in _functions_among([member])]
    yield from filter(_is_users, [*own, *_functions_in(type(callback))])


def _functions_in(kind: type) -> Iterator[types.FunctionType]:
    return _functions_among([m for base in kind.__mro__ for m in vars(base).values()])


def _functions_among(members: list[Any]) -> Iterator[types.FunctionType]:
    for member in members:
        function = getattr(member, "fget", member)  # a property
        function = getattr(function, "__func__", function)  # a method
        if isinstance(function, types.FunctionType):
            yield function


def _is_users(function: types.FunctionType) -> bool:
    return is_users_file(function.__code__.co_filename)


def _named_in(function: types.FunctionType) -> Iterator[tuple[str, Place]]:
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            module = function.__globals__.get("__name__", "")
            yield f"{module}.{name}", Entry(function.__globals__, name)
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        if name != "__class__" and cell != types.CellType():  # without a value yet
            yield f"{function.__qualname__}.{name}", Attribute(cell)


def _names_in(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names, *(name for c in inner for name in _names_in(c))}


def _inside(name: str, value: Any, names: set[str], levels: int) -> Iterator[tuple[str, Place]]:
    """Yields the attributes of an object or class of the user that code names."""
    kind = value if inspect.isclass(value) else type(value)
    if not levels or isinstance(value, keras.callbacks.Callback | keras.Model | keras.Layer):
        return
    if not any(map(_is_users, _functions_among(list(vars(kind).values())))):
        return
    own = getattr(value, "__dict__", {})
    for attribute in sorted(names & own.keys()):
        place: Place = Attribute(value, attribute) if value is kind else Entry(own, attribute)
        yield f"{name}.{attribute}", place
        yield from _inside(f"{name}.{attribute}", place.value, names, levels - 1)


def _draws(names: set[str], places: dict[str, Place]) -> bool:
    """Whether code may draw from the generators that all code of a process shares."""
    owners = [getattr(place.value, "__self__", None) for place in places.values()]
    return "random" in names or any(owner in GLOBAL_GENERATORS for owner in owners)


def _plain(value: Any) -> Any:
    """Returns the list, dict or set in place of the kinds that Keras makes of a model's."""
    for kind in (list, dict, set):
        if isinstance(value, kind) and type(value).__module__.startswith("keras."):
            return kind(value)
    return value


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
    if not isinstance(present, type(value)):
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
