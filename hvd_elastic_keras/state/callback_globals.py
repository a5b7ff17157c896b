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
NOT_INSIDE = (
    *(keras.callbacks.Callback, keras.Model, keras.Layer, types.FunctionType),
    keras.utils.PyDataset,  # a newcomer calls its hooks as often as the others
)
"""Objects whose attributes are not followed."""
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


@dataclasses.dataclass(frozen=True, eq=False)
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


@dataclasses.dataclass(frozen=True, eq=False)
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


RANDOM_STATES: dict[str, Place] = {"random": PythonRandom(), "numpy.random": NumpyRandom()}
GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand)


def outside_of(
    callback: keras.callbacks.Callback, model: keras.Model, called: str
) -> dict[str, Place]:
    """Returns the places that the code of a callback uses, by names that all workers share.

    Args:
      called: the name of the callback, which no other one has.
    """
    found: dict[str, Place] = {}
    names: set[str] = set()
    todo = [f for value in (callback, *vars(callback).values()) for f in _functions_of(value)]
    seen: set[int] = set()
    cells: dict[str, dict[int, int]] = {}
    while todo:
        function = todo.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        names |= _names_in(function.__code__)
        named = dict(_globals_in(function))
        for name, cell in _enclosing(function):
            same = cells.setdefault(name, {})  # the same code may have made several functions
            number = same.setdefault(id(cell), len(same))
            named[f"{called} {name} {number}"] = Attribute(cell)
        for place in named.values():
            todo += _functions_of(place.value)
        found |= named
    values = {name: place.value for name, place in found.items()}
    values |= {f"{called}.{name}": value for name, value in vars(callback).items()}
    for name, value in values.items():
        found |= dict(_inside(name, value, names, MOST_LEVELS))
    for name in names & vars(model).keys() - OF_KERAS:
        if not name.startswith("_"):
            found[OF_MODEL + name] = Entry(vars(model), name)
    if _draws(names, found):
        found |= RANDOM_STATES
    return found


def encoded(places: dict[str, Place]) -> dict[str, Tree]:
    """Returns the present values as JSON and bytes, as far as they can be encoded."""
    found = {}
    for name, place in places.items():
        value = _plain(place.value)
        if isinstance(value, types.FunctionType | types.ModuleType):
            continue
        try:
            if _size(value) <= MOST_BYTES:
                found[name] = json_codec.encode(value)
        except json_codec.NotEncodableError:
            continue  # an object that the same script makes on all workers
        except RuntimeError:
            continue  # it contains itself, or another thread changes it
    return found


def is_sent_in_parts(name: str, places: dict[str, Place], sent: Container[str]) -> bool:
    """Whether an object is one of the user's whose attributes are all among the places sent."""
    inner = [other for other in places if other.startswith(f"{name}.")]
    return bool(inner) and all(n in sent or is_sent_in_parts(n, places, sent) for n in inner)


def iterators_in(places: dict[str, Place]) -> dict[str, str]:
    """Returns the kinds of iterators among the values. Their position cannot be sent."""
    values = {name.split(".")[-1].split()[0]: place.value for name, place in places.items()}
    return {
        name: f"a {type(value).__name__}"
        for name, value in values.items()
        if isinstance(value, Iterator) and not hasattr(value, "fileno")
    }


def _functions_of(value: Any) -> list[types.FunctionType]:
    """Returns the user's functions that a value is, or that its class or itself as a class has."""
    if isinstance(value, keras.utils.PyDataset):
        return []
    if isinstance(value, types.FunctionType | types.MethodType):
        members = [value]
    else:
        kind = value if inspect.isclass(value) else type(value)
        members = [member for base in kind.__mro__ for member in vars(base).values()]
    functions = [getattr(m, "fget", None) or getattr(m, "__func__", m) for m in members]
    return [
        f
        for f in functions
        if isinstance(f, types.FunctionType) and is_users_file(f.__code__.co_filename)
    ]


def _globals_in(function: types.FunctionType) -> Iterator[tuple[str, Place]]:
    for name in sorted(_names_in(function.__code__)):
        if name in function.__globals__:
            module = function.__globals__.get("__name__", "")
            yield f"{module}.{name}", Entry(function.__globals__, name)


def _enclosing(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    """Yields the variables of enclosing functions that a function uses."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        if name != "__class__" and cell != types.CellType():  # without a value yet
            yield f"{function.__qualname__}.{name}", cell


def _names_in(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names, *(name for c in inner for name in _names_in(c))}


def _inside(name: str, value: Any, names: set[str], levels: int) -> Iterator[tuple[str, Place]]:
    """Yields the attributes of an object or class of the user that code names."""
    if not levels or isinstance(value, NOT_INSIDE) or not _functions_of(value):
        return
    own, is_class = getattr(value, "__dict__", {}), inspect.isclass(value)
    for attribute in sorted(names & own.keys()):
        place: Place = Attribute(value, attribute) if is_class else Entry(own, attribute)
        yield f"{name}.{attribute}", place
        yield from _inside(f"{name}.{attribute}", place.value, names, levels - 1)


def _draws(names: set[str], places: dict[str, Place]) -> bool:
    """Whether code may draw from the generators that all code of a process shares."""
    owners = [getattr(place.value, "__self__", None) for place in places.values()]
    return "random" in names or any(o is g for o in owners for g in GLOBAL_GENERATORS)


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
        return int(value.dtype.size) * int(value.shape.num_elements() or 0)
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
