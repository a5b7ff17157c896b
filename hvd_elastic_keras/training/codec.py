"""Python values (numbers, texts, lists, dicts, arrays) to JSON and back. Nothing is pickled."""

from __future__ import annotations

import base64
import io
from typing import Any

import keras
import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ARRAY = "__array__"
TUPLE = "__tuple__"
FUNCTION = "__function__"
MODULES = {"keras.ops": keras.ops, "numpy": np}
"""Functions of these travel by name: callbacks remember comparisons such as `keras.ops.less`."""
NAMED = "__named_array__"
SCALAR = "__scalar__"
MARKS = (ARRAY, TUPLE, FUNCTION, NAMED, SCALAR)
SMALL_FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Not NumPy's own: its file format would lose the dtype. All of them fit into float32 exactly."""
PLAIN = (str, bool, int, float, type(None))


class NotEncodableError(TypeError):
    """A value of a type that does not travel."""


def to_json(value: Any) -> Any:
    """A value in terms of JSON."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return _array_to_json(value)
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple):
        return {TUPLE: [to_json(v) for v in value]}
    if isinstance(value, list):
        return [to_json(v) for v in value]
    if isinstance(value, dict) and all(isinstance(k, str) and k not in MARKS for k in value):
        return {key: to_json(v) for key, v in value.items()}
    for module_name, module in MODULES.items():
        name = getattr(value, "__name__", "")
        if name and getattr(module, name, None) is value:
            return {FUNCTION: [module_name, name]}
    raise NotEncodableError(f"{type(value).__name__} cannot be sent to another worker")


def from_json(value: Any) -> Any:
    """The value that `to_json` was given."""
    if isinstance(value, list):
        return [from_json(v) for v in value]
    if isinstance(value, dict):
        if any(mark in value for mark in (ARRAY, NAMED, SCALAR)):
            return _array_from_json(value)
        if FUNCTION in value:
            module_name, name = value[FUNCTION]
            return getattr(MODULES[module_name], name)
        if TUPLE in value:
            return tuple(from_json(v) for v in value[TUPLE])
        return {key: from_json(v) for key, v in value.items()}
    return value


def _array_to_json(value: Array | np.generic) -> dict[str, Any]:
    if isinstance(value, np.generic):
        # Not as a number: `Model.get_weights()` returns such scalars, and wants arrays back.
        return {SCALAR: _array_to_json(np.asarray(value))}
    if value.dtype.name in SMALL_FLOATS:
        return {NAMED: [value.dtype.name, _array_to_json(value.astype(np.float32))]}
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return {ARRAY: base64.b64encode(buffer.getvalue()).decode()}


def _array_from_json(value: dict[str, Any]) -> Any:
    if SCALAR in value:
        return _array_from_json(value[SCALAR])[()]
    if NAMED in value:
        name, wider = value[NAMED]
        return _array_from_json(wider).astype(getattr(ml_dtypes, name))
    array: Array = np.load(io.BytesIO(base64.b64decode(value[ARRAY])), allow_pickle=False)
    return array
