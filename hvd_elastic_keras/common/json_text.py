"""Reads JSON that anybody may have written. Anything wrong with it raises a `ValueError`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def only_value_errors() -> Iterator[None]:
    """Turns a parser's `RecursionError` for deeply nested text into a `ValueError`."""
    try:
        yield
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def loads(text: str | bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Returns the value of a JSON text.

    Raises:
      ValueError: the text is not JSON.
    """
    with only_value_errors():
        return json.loads(text, object_hook=object_hook)
