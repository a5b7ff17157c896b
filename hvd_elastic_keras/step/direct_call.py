"""Calls the graph of a function without `tf.function` between.

`tf.function` looks at its arguments, to find the graph that was traced for such ones, for about as
long as a step of a small model takes. A function with an input signature has one graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def directly(function: Any) -> Callable[..., Any]:
    """What calls the graph of a `tf.function` that has an input signature.

    It is traced at the first call, as the function itself would be.
    """
    graph = functools.cache(function.get_concrete_function)

    def call(*arguments: Any) -> Any:
        if tf.config.functions_run_eagerly():  # somebody looks for a mistake
            return function(*arguments)
        return graph()(*arguments)

    return call
