"""Deletes iterators of `tf.data.Dataset`s in a user's own loop where nobody waits for it.

When a round ends inside `for batch in dataset`, the loop's iterator is deleted before the worker
can enter the next round. The iterator's autotune thread may miss TensorFlow's request to end.
TensorFlow then waits until the thread looks up by itself, at intervals that double up to a minute.
During these seconds, all workers stand still.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.data.sources.iterators import drop_in_background


@contextlib.contextmanager
def deleted_in_background() -> Iterator[None]:
    """Marks a block in which dropping an iterator does not make the dropping thread wait."""
    make = tf.data.Dataset.__iter__

    @functools.wraps(make)
    def make_iterator(dataset: tf.data.Dataset) -> Any:
        iterator = make(dataset)
        if tf.executing_eagerly():
            # This holds the attributes, not the iterator: the iterator must die when the user's
            # code drops it.
            weakref.finalize(iterator, _take_apart, vars(iterator)).atexit = False
        return iterator

    tf.data.Dataset.__iter__ = make_iterator
    try:
        yield
    finally:
        tf.data.Dataset.__iter__ = make


def _take_apart(attributes: dict[str, Any]) -> None:
    """Moves everything that a dying iterator holds to a thread that deletes it."""
    held = [dict(attributes)]
    attributes.clear()
    drop_in_background(held)
