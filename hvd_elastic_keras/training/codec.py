"""Python values (numbers, texts, lists, dicts, arrays) to JSON and back. Nothing is pickled."""

from __future__ import annotations

import base64
import io
from typing import Any

import keras
import numpy as np

ARRAY = "__array__"
TUPLE = "__tuple__"
FUNCTION = "__function__"
MARKS = (ARRAY, TUPLE, FUNCTION)
MODULES = {"keras.ops": keras.ops, "numpy": np}
"""Functions of these travel by name: callbacks remember comparisons such as `keras.ops.less`."""
PLAIN = (str, bool, int, float, type(None))


class NotEncodableError(TypeError):
    """A value of a type that does not travel."""


def to_json(value: Any) -> Any:
    """A value in terms of JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        return {ARRAY: base64.b64encode(buffer.getvalue()).decode()}
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
        if ARRAY in value:
            data = io.BytesIO(base64.b64decode(value[ARRAY]))
            return np.load(data, allow_pickle=False)
        if FUNCTION in value:
            module_name, name = value[FUNCTION]
            return getattr(MODULES[module_name], name)
        if TUPLE in value:
            return tuple(from_json(v) for v in value[TUPLE])
        return {key: from_json(v) for key, v in value.items()}
    return value
