"""Rarer garbage collections while a process starts, and none while steps are traced.

Imports and traces make hundreds of thousands of objects that stay. Python's collector looks at all
of them again and again: a fifth of the import of TensorFlow, and a third of the plan of a large
step, are such collections.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

RARE = 200_000
"""New objects between two collections while a process starts. Python's default is 700."""


def collect_rarely() -> Callable[[], None]:
    """Makes collections rarer. Returns a function that undoes this.

    It leaves alone what the program has set meanwhile.
    """
    first, *others = gc.get_threshold()
    if 0 < first < RARE:  # 0 turns collections off
        gc.set_threshold(RARE, *others)

    def undo() -> None:
        if gc.get_threshold()[0] == RARE:
            gc.set_threshold(first, *others)

    return undo


@contextlib.contextmanager
def not_collected() -> Iterator[None]:
    """Turns collections off in a block, or in a function that it decorates."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
