"""Iterators of `tf.data.Dataset`s in a user's own loop, deleted where nobody waits for it.

When a round ends inside of `for batch in dataset`, the loop's iterator is deleted before the worker
can enter the next round. TensorFlow may miss the wish to end the iterator's autotune thread, and
then waits until that looks up by itself, at intervals that double up to a minute: seconds for which
all workers stand still.
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
    """Lets no iterator that is made inside hold up the thread that gives it up."""
    make = tf.data.Dataset.__iter__

    @functools.wraps(make)
    def make_iterator(dataset: tf.data.Dataset) -> Any:
        iterator = make(dataset)
        if tf.executing_eagerly():
            # The attributes, not the iterator itself: it goes when the user's code gives it up.
            weakref.finalize(iterator, _take_apart, vars(iterator)).atexit = False
        return iterator

    tf.data.Dataset.__iter__ = make_iterator
    try:
        yield
    finally:
        tf.data.Dataset.__iter__ = make


def _take_apart(attributes: dict[str, Any]) -> None:
    """Moves all that a dying iterator holds to a thread that deletes it."""
    held = [dict(attributes)]
    attributes.clear()
    drop_in_background(held)
