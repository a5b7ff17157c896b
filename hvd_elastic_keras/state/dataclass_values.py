"""Describes frozen dataclasses by the name of their class and their fields, and makes them again.

No code of the class is run. The class is looked up among the loaded modules and has to be a frozen
dataclass; then its fields are set.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

from hvd_elastic_keras.common.errors import ConfigurationError

Name = list[str]
"""Module and qualified name of a class."""


class UnknownClassError(ConfigurationError):
    """This process has not loaded a class that another one has sent a value of."""


def is_frozen(value: Any) -> bool:
    """Whether a value is an instance of a frozen dataclass."""
    return _is_frozen_class(type(value))


def name_of(value: Any) -> Name | None:
    """Returns the name of a value's class.

    Returns None if the class cannot be found by its name, or the value holds more than its fields.
    """
    kind = type(value)
    name = [kind.__module__, kind.__qualname__]
    held = getattr(value, "__dict__", {}).keys()
    return name if _found(name) is kind and held <= fields_of(value).keys() else None


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the values of the fields by name."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def made(name: Name, fields: dict[str, Any]) -> Any:
    """Makes an instance of a class with these fields.

    Raises:
      UnknownClassError: this process has no such class.
    """
    kind = _found(name)
    names = {f.name for f in dataclasses.fields(kind)} if _is_frozen_class(kind) else None
    if kind is None or names != fields.keys():
        raise UnknownClassError(
            f"A state holds a {'.'.join(name)} with the fields {sorted(fields)}, but this worker "
            "has no such frozen dataclass. Run the same script on all workers, and go on with the "
            "script that a checkpoint was written with."
        )
    value = object.__new__(kind)
    for field, content in fields.items():
        object.__setattr__(value, field, content)
    return value


def _is_frozen_class(kind: Any) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return isinstance(kind, type) and bool(getattr(parameters, "frozen", False))


def _found(name: Name) -> Any:
    module, qualified_name = name
    try:
        owner = sys.modules[module]
        return functools.reduce(getattr, qualified_name.split("."), owner)
    except (KeyError, AttributeError):
        return None
