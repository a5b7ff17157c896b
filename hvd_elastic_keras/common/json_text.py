"""Reads JSON that anybody may have written: whatever is wrong with it is a `ValueError`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def only_value_errors() -> Iterator[None]:
    """Turns what a parser says of deeply nested text into a `ValueError`."""
    try:
        yield
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def loads(text: str | bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The value of a JSON text.

    Raises:
      ValueError: it is none.
    """
    with only_value_errors():
        return json.loads(text, object_hook=object_hook)
