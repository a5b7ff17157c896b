"""Summaries that an unchanged script writes for TensorBoard: only the root records them.

All workers would write them into the same directory, and TensorBoard would show each point several
times. If the root is lost, the next one goes on in a file of its own, beside that of the first.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.state import one_writer
from hvd_elastic_keras.state.one_writer import WHY

_entered: list[contextlib.AbstractContextManager[Any]] = []
"""Contexts that no block leaves. One that nothing refers to would end."""


def install(applies: Callable[[], bool]) -> None:
    """Changes the writers that `tf.summary.create_file_writer` makes.

    Args:
      applies: says at each call whether one worker shall write for all.
    """
    original = tf.summary.create_file_writer
    turns_of = one_writer.turns_in_this_process()

    @functools.wraps(original)
    def create_file_writer(*args: Any, **kwargs: Any) -> Any:
        writer = original(*args, **kwargs)
        turns = turns_of() if applies() else None
        if turns is not None:
            _record_only_if(turns.is_root, writer)
        return writer

    patches.install(tf.summary, "create_file_writer", create_file_writer, WHY)


def _record_only_if(condition: Callable[[], bool], writer: Any) -> None:
    as_default = writer.as_default

    @contextlib.contextmanager
    def as_default_if(step: Any = None) -> Iterator[Any]:
        with as_default(step), tf.summary.record_if(condition):
            yield writer

    def set_as_default_if(step: Any = None) -> None:
        context = as_default_if(step)
        context.__enter__()
        _entered.append(context)

    writer.as_default, writer.set_as_default = as_default_if, set_as_default_if
