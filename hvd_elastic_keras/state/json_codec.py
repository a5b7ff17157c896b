"""Converts Python values (numbers, texts, containers, arrays, times) to JSON and bytes, and back.

A decoded value has the same type and value as the original. A value that cannot be encoded so is
refused, not approximated. Nothing is pickled.
"""

from __future__ import annotations

import ast
import collections
import datetime
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.state import dataclass_values, packing
from hvd_elastic_keras.state.packing import Tree

Array = npt.NDArray[Any]
ARRAY = "__array__"
TUPLE = "__tuple__"
FUNCTION = "__function__"
MODULES = {"keras.ops": keras.ops, "numpy": np}
"""Modules whose functions are encoded by name.

Callbacks keep comparisons such as `keras.ops.less`."""
SCALAR = "__scalar__"
PAIRS = "__dict__"
KIND = "__kind__"
MARKS = (ARRAY, TUPLE, FUNCTION, SCALAR, PAIRS, KIND, packing.MARK)
SMALL_FLOATS = "ml_dtypes."
"""Prefix of the name of a dtype that is not NumPy's own, such as bfloat16."""
PLAIN = (str, bool, int, float, bytes, type(None))
FACTORIES = {f.__name__: f for f in (int, float, str, bool, list, dict, set, tuple)}
"""Factories of a `defaultdict` that can be encoded."""
TIMES = {t.__name__: t for t in (datetime.datetime, datetime.date, datetime.time)}
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
"""Names of NumPy's bit generators that can be encoded."""


class NotEncodableError(TypeError):
    """A value has a type that cannot be encoded."""


def encode(value: Any) -> Tree:
    """Returns a value as JSON and bytes, which share nothing mutable with the value.

    Raises:
      NotEncodableError: the value is or holds something that cannot be encoded.
    """
    try:
        return _encode(value)
    except RecursionError:
        raise _refused(value) from None  # the value contains itself


def decode(tree: Tree) -> Any:
    """Returns the value that was given to `encode`."""
    if isinstance(tree, list):
        return [decode(v) for v in tree]
    if isinstance(tree, dict):
        for mark, unpack in _MARKED.items():
            if mark in tree:
                return unpack(tree[mark])
        return {key: decode(v) for key, v in tree.items()}
    return tree


def _encode(value: Any) -> Tree:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is list:
        return _items(value)
    if kind is tuple:
        return {TUPLE: _items(value)}
    if kind is dict:
        return _dict_to_tree(value)
    if kind is np.ndarray or isinstance(value, np.generic):
        return _array_to_tree(value)
    if kind is _TYPES.get(kind.__name__):
        return {KIND: [kind.__name__, _PACK[kind.__name__](value)]}
    if isinstance(value, Path):
        return {KIND: ["Path", str(value)]}
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy") and value.dtype != tf.string:
        return {KIND: ["Tensor", _encode(np.asarray(value))]}
    if dataclass_values.is_frozen(value):
        return {KIND: ["dataclass", _dataclass_to_tree(value)]}
    return _function_to_tree(value)


def _dataclass_to_tree(value: Any) -> list[Any]:
    name = dataclass_values.name_of(value)
    if name is None:
        raise _refused(value)
    return [name, _encode(dataclass_values.fields_of(value))]


def _dataclass_from_tree(content: list[Any]) -> Any:
    name, fields = content
    return dataclass_values.made(name, decode(fields))


def _function_to_tree(value: Any) -> Tree:
    for module_name, module in MODULES.items():
        name = getattr(value, "__name__", "")
        if name and getattr(module, name, None) is value:
            return {FUNCTION: [module_name, name]}
    raise _refused(value)


def _function_from_tree(content: list[str]) -> Any:
    module_name, name = content
    return getattr(MODULES[module_name], name)


def _refused(value: Any) -> NotEncodableError:
    return NotEncodableError(f"{type(value).__name__} cannot be sent to another worker")


def _dict_to_tree(value: dict[Any, Any]) -> dict[str, Any]:
    if all(type(k) is str and k not in MARKS for k in value):
        return {key: _encode(v) for key, v in value.items()}
    return {PAIRS: _pairs(value)}


def _pairs(value: dict[Any, Any]) -> list[list[Any]]:
    return [[_encode(k), _encode(v)] for k, v in value.items()]


def _items(value: Any) -> list[Any]:
    return [_encode(v) for v in value]


def _dict_of(content: list[list[Any]]) -> dict[Any, Any]:
    return {decode(k): decode(v) for k, v in content}


def _default_dict_to_tree(value: collections.defaultdict[Any, Any]) -> list[Any]:
    name = getattr(value.default_factory, "__name__", "")
    if value.default_factory is not None and FACTORIES.get(name) is not value.default_factory:
        raise _refused(value)
    return [name, _pairs(value)]


def _default_dict_from_tree(content: list[Any]) -> collections.defaultdict[Any, Any]:
    name, pairs = content
    return collections.defaultdict(FACTORIES.get(name), _dict_of(pairs))


def _time_to_tree(value: datetime.datetime | datetime.date | datetime.time) -> str:
    zone = getattr(value, "tzinfo", None)
    if zone is not None and type(zone) is not datetime.timezone:
        raise _refused(value)  # the time would lose the name of its zone
    return value.isoformat()


def _generator_to_tree(value: np.random.Generator) -> Any:
    state = value.bit_generator.state
    if state["bit_generator"] not in GENERATORS:
        raise _refused(value)
    return _encode(state)


def _generator_from_tree(content: Any) -> np.random.Generator:
    state = decode(content)
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    return np.random.Generator(bits)


def _random_state_from_tree(content: Any) -> np.random.RandomState:
    generator = np.random.RandomState()
    generator.set_state(decode(content))
    return generator


def _random_from_tree(content: Any) -> random.Random:
    generator = random.Random()
    generator.setstate(decode(content))
    return generator


_TYPES: dict[str, type] = {
    t.__name__: t
    for t in (
        *(set, frozenset, bytearray, complex),
        *(collections.deque, collections.Counter, collections.OrderedDict),
        collections.defaultdict,
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
        *(np.random.Generator, np.random.RandomState, random.Random),
    )
}
"""Types that are encoded under their name. Their subclasses are not encoded under it."""

_PACK: dict[str, Callable[[Any], Any]] = {
    "set": _items,
    "frozenset": _items,
    "bytearray": bytes,
    "complex": lambda value: [value.real, value.imag],
    "deque": lambda value: [value.maxlen, _items(value)],
    "Counter": _pairs,
    "OrderedDict": _pairs,
    "defaultdict": _default_dict_to_tree,
    **dict.fromkeys(TIMES, _time_to_tree),
    "timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "Generator": _generator_to_tree,
    "RandomState": lambda value: _encode(value.get_state(legacy=False)),
    "Random": lambda value: _encode(value.getstate()),
}

_UNPACK: dict[str, Callable[[Any], Any]] = {
    "set": lambda content: set(map(decode, content)),
    "frozenset": lambda content: frozenset(map(decode, content)),
    "bytearray": bytearray,
    "complex": lambda content: complex(*content),
    "deque": lambda content: collections.deque(map(decode, content[1]), content[0]),
    "Counter": lambda content: collections.Counter(_dict_of(content)),
    "OrderedDict": lambda content: collections.OrderedDict(_dict_of(content)),
    "defaultdict": _default_dict_from_tree,
    **{name: kind.fromisoformat for name, kind in TIMES.items()},
    "timedelta": lambda content: datetime.timedelta(*content),
    "Generator": _generator_from_tree,
    "RandomState": _random_state_from_tree,
    "Random": _random_from_tree,
    "Path": Path,
    "dataclass": _dataclass_from_tree,
    "Tensor": lambda content: tf.constant(decode(content)),
}


def _array_to_tree(value: Array | np.generic) -> Tree:
    if isinstance(value, np.generic):
        # Not as a number: `Model.get_weights()` returns such scalars, and Keras needs arrays back.
        return {SCALAR: _array_to_tree(np.asarray(value))}
    if value.dtype.hasobject:
        raise NotEncodableError(f"an array of {value.dtype} cannot be sent to another worker")
    return {ARRAY: [_dtype_to_text(value.dtype), list(value.shape), value.tobytes()]}


def _array_from_tree(content: list[Any]) -> Array:
    dtype, shape, data = content
    array: Array = np.frombuffer(data, _dtype_from_text(dtype)).reshape(shape)
    return array.copy()  # the bytes are read-only


def _dtype_to_text(dtype: np.dtype[Any]) -> str:
    if dtype.type.__module__ == "ml_dtypes":
        return SMALL_FLOATS + dtype.name
    return repr(np.lib.format.dtype_to_descr(dtype))


def _dtype_from_text(text: str) -> np.dtype[Any]:
    is_small = text.startswith(SMALL_FLOATS)
    dtype: np.dtype[Any] = (
        np.dtype(getattr(ml_dtypes, text.removeprefix(SMALL_FLOATS)))
        if is_small
        else np.lib.format.descr_to_dtype(ast.literal_eval(text))
    )
    return dtype


def _kind_from_tree(content: list[Any]) -> Any:
    kind, inner = content
    return _UNPACK[kind](inner)


_MARKED: dict[str, Callable[[Any], Any]] = {
    ARRAY: _array_from_tree,
    SCALAR: lambda content: decode(content)[()],
    FUNCTION: _function_from_tree,
    TUPLE: lambda content: tuple(map(decode, content)),
    PAIRS: _dict_of,
    KIND: _kind_from_tree,
}
