"""Makes TensorFlow's stateful random operations stateless: their seeds follow from the step.

Originally, their numbers follow from a state inside the process that no other worker has. Here they
are reproducible, but differ from the numbers in plain `fit`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.patches import replaced
from hvd_elastic_keras.keras_internals.stateless_draws import StatelessDraws, mixed
from hvd_elastic_keras.keras_internals.tensorflow_names import (
    WhileBodyFuncGraph,
    gen_random_ops,
    parallel_for,
)

Operation = Callable[..., Any]


class StatefulDraws:
    """Replaces stateful random operations by stateless ones while a step is traced.

    Args:
      step: a number that is different for each step.
      seed: all random numbers follow from it and from `step`.
    """

    def __init__(self, step: Any, seed: int) -> None:
        self._step = step
        self._seed = seed
        self._draws = StatelessDraws(self._next_seed)
        self._ordinal = 0
        self._parallel_loops = 0
        self.names: set[str] = set()
        """TensorFlow's names of the operations that have been replaced."""

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Replaces the operations inside a `with` block, in this thread."""
        with contextlib.ExitStack() as stack:
            for name in self._draws.METHODS.values():
                draw = _unnamed(getattr(self._draws, name))
                stack.enter_context(replaced(gen_random_ops, name, draw))
            stack.enter_context(replaced(parallel_for, "_pfor_impl", self._within_parallel_loop))
            yield

    def _within_parallel_loop(self, original: Operation, *args: Any, **kwargs: Any) -> Any:
        """Notes that a `tf.vectorized_map` is traced.

        Its body is traced once, so all elements would draw the same numbers.
        """
        self._parallel_loops += 1
        try:
            return original(*args, **kwargs)
        finally:
            self._parallel_loops -= 1

    def _next_seed(self, name: str, seed: int, seed2: int) -> Any:
        """Returns a seed (shape [2], int64) for the next stateful operation of this step."""
        self._refuse_loops(name)
        self.names.add(name)
        self._ordinal += 1
        number = mixed(self._seed, seed, seed2, self._ordinal)
        return tf.stack([tf.constant(number, tf.int64), tf.cast(self._step, tf.int64)])

    def _refuse_loops(self, name: str) -> None:
        if self._parallel_loops or _is_in_loop():
            raise ConfigurationError(
                f"The model draws random numbers with tf.random ({name}) inside a loop "
                "(tf.while_loop, tf.map_fn, tf.vectorized_map, a loop over tf.range), where they "
                "cannot be made the same on all workers. Draw them for all iterations before the "
                "loop, or use tf.random.stateless_* with a seed that depends on the iteration."
            )


def _unnamed(draw: Operation) -> Operation:
    """Wraps an operation to ignore the original, and the argument `name` of TensorFlow."""

    def unnamed(_: Operation, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("name", None)
        return draw(*args, **kwargs)

    return unnamed


def state_of_python_generators() -> tuple[Any, ...]:
    """Returns the states of NumPy's and Python's own generators.

    No step can give these states to other workers.
    """
    _, keys, *rest = np.random.get_state(legacy=True)
    return np.asarray(keys).tobytes(), rest, random.getstate()


def _is_in_loop() -> bool:
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if isinstance(graph, WhileBodyFuncGraph):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
