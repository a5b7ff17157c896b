"""Calls the graph of a `tf.function` directly.

`tf.function` inspects its arguments to find the graph that was traced for arguments of that kind.
This takes about as long as a step of a small model. A function with an input signature has only one
graph, so that nothing has to be found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def directly(function: Any) -> Callable[..., Any]:
    """Returns a function that calls the graph of a `tf.function` with an input signature.

    The graph is traced at the first call, as it is by `tf.function`.
    """
    graph = functools.cache(function.get_concrete_function)

    def call(*arguments: Any) -> Any:
        if tf.config.functions_run_eagerly():  # somebody is debugging
            return function(*arguments)
        return graph()(*arguments)

    return call
