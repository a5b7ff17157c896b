"""Checks values. The error for a wrong one names the value given and the value expected."""

from __future__ import annotations

import math

from hvd_elastic_keras.common.errors import ConfigurationError


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raises `ConfigurationError` unless the condition holds.

    Args:
      expected: the text that follows "expected a value" in the message.
    """
    if not condition:
        raise ConfigurationError(f"{name}={value} was given, expected a value {expected}.")


def require_whole_number(name: str, value: object, may_be_none: bool = False) -> None:
    """Raises `ConfigurationError` for anything but a whole number, or None if that is allowed."""
    good = isinstance(value, int) and not isinstance(value, bool)
    require(good or (may_be_none and value is None), name, repr(value), "that is a whole number")


def require_number(name: str, value: object) -> None:
    """Raises `ConfigurationError` for anything that is not a finite number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    require(good, name, repr(value), "that is a number")


def require_bool(name: str, value: object) -> None:
    """Raises `ConfigurationError` for anything but True and False."""
    require(isinstance(value, bool), name, repr(value), "that is True or False")
