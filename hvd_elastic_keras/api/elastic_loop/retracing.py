"""Notices that a `tf.function` of the user's was traced while all workers waited for it.

The user's own loop may call any `tf.function`. If its graph fits only one size of a share, or was
not traced before the worker joined, it is traced inside a round. This costs seconds. Only the user
can change it, so a warning says so.
"""

from __future__ import annotations

import contextlib
import inspect
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

WORTH_TELLING_S = 0.5
"""No warning if the first commit of a round comes sooner: tracing has not held it up."""
TRACES = "experimental_get_tracing_count"


class TracedAnew:
    """Checks in every round whether a training function's graphs were traced again.

    Args:
      function: the function that `elastic.run` calls. Its `tf.function`s are found if they are
        global names that it uses, variables of the functions around it, or attributes of either.
      clock: seconds of a steady clock.
    """

    def __init__(
        self, function: Callable[..., Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._function = inspect.unwrap(function)
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._began: float | None = None

    def begin_round(self) -> None:
        """Notes the counts of traces, before a call of the function that others wait for."""
        self._counts = self._traces()
        self._began = self._clock()

    def first_commit(self) -> str:
        """Returns a warning at the first commit of such a round; empty if there is none."""
        if self._began is None:
            return ""
        took_s, self._began = self._clock() - self._began, None
        if took_s < WORTH_TELLING_S:
            return ""
        new = {
            name: self._counts.get(name, 0)
            for name, count in self._traces().items()
            if count > self._counts.get(name, 0)
        }
        if not new:
            return ""
        return _advice(list(new), any(new.values()), took_s)

    def _traces(self) -> dict[str, int]:
        """Returns how often each `tf.function` has been traced, by name."""
        found: dict[str, int] = {}
        if not isinstance(self._function, types.FunctionType):
            return found
        for name, value in _reachable(self._function):
            count = getattr(value, TRACES, None)
            if callable(count):
                found[name] = int(count())
        return found


def _advice(names: list[str], traced_before: bool, took_s: float) -> str:
    what = f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} traced"
    waited = f"while all workers waited (the round's first commit came after {took_s:.1f} s)"
    if traced_before:
        return (
            f"{what} anew {waited}: its graphs were for other shapes or Python values. Give "
            "tf.function an input_signature with None for the batch (or reduce_retracing=True), "
            "and call it before the function of elastic.run with the training's Python values."
        )
    return (
        f"{what} for the first time {waited}. Call it once, as in training, before the function of "
        "elastic.run, then state.restore()."
    )


def _reachable(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a function can reach by name, also through functions of its module."""
    todo, seen = [function], {id(function)}
    while todo:
        for name, value in _names_of(todo.pop()):
            yield name, value
            if isinstance(value, types.FunctionType) and id(value) not in seen:
                seen.add(id(value))
                if value.__module__ == function.__module__:
                    todo.append(value)
            elif not isinstance(value, types.ModuleType):
                attributes = getattr(value, "__dict__", {})
                yield from ((f"{name}.{key}", v) for key, v in list(attributes.items()))


def _names_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the global names and the variables of outer functions that a function's code uses."""
    code = function.__code__
    for name in dict.fromkeys(_used(code)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not yet assigned
            yield name, cell.cell_contents


def _used(code: types.CodeType) -> Iterator[str]:
    """Yields the names in a code object and in the code objects inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _used(constant)
