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
        self._ordinal = 0
        self._parallel_loops = 0
        self.names: set[str] = set()
        """TensorFlow's names of the operations that have been replaced."""

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Replaces the operations inside a `with` block, in this thread."""
        with contextlib.ExitStack() as stack:
            for name, draw in self._replacements.items():
                stack.enter_context(replaced(gen_random_ops, name, _unnamed(draw)))
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

    @property
    def _replacements(self) -> dict[str, Operation]:
        """Replacements, by the names in `gen_random_ops`. Each also receives the original."""
        return {
            "random_uniform": self._uniform,
            "random_uniform_int": self._uniform_int,
            "random_standard_normal": self._normal,
            "truncated_normal": self._truncated_normal,
            "random_shuffle": self._shuffle,
            "multinomial": self._multinomial,
            "random_gamma": self._gamma,
            "random_poisson_v2": self._poisson,
        }

    def _next_seed(self, name: str, seed: int, seed2: int) -> Any:
        """Returns a seed (shape [2], int64) for the next stateful operation of this step."""
        self._refuse_loops(name)
        self.names.add(name)
        self._ordinal += 1
        numbers = (self._seed, seed or 0, seed2 or 0, self._ordinal)
        mixed = 0
        for number in numbers:
            mixed = (mixed * 1_000_003 + number) % (2**62)
        return tf.stack([tf.constant(mixed, tf.int64), tf.cast(self._step, tf.int64)])

    def _refuse_loops(self, name: str) -> None:
        if self._parallel_loops or _is_in_loop():
            raise ConfigurationError(
                f"The model draws random numbers with tf.random ({name}) inside a loop "
                "(tf.while_loop, tf.map_fn, tf.vectorized_map, a loop over tf.range), where they "
                "cannot be made the same on all workers. Draw them for all iterations before the "
                "loop, or use tf.random.stateless_* with a seed that depends on the iteration."
            )

    def _uniform(self, _: Operation, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0) -> Any:
        return tf.random.stateless_uniform(
            shape, self._next_seed("tf.random.uniform", seed, seed2), dtype=dtype
        )

    def _uniform_int(
        self, _: Operation, shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0
    ) -> Any:
        found = self._next_seed("tf.random.uniform", seed, seed2)
        dtype = tf.convert_to_tensor(minval).dtype
        return tf.random.stateless_uniform(shape, found, minval, maxval, dtype)

    def _normal(self, _: Operation, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0) -> Any:
        return tf.random.stateless_normal(
            shape, self._next_seed("tf.random.normal", seed, seed2), dtype=dtype
        )

    def _truncated_normal(
        self, _: Operation, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0
    ) -> Any:
        return tf.random.stateless_truncated_normal(
            shape, self._next_seed("tf.random.truncated_normal", seed, seed2), dtype=dtype
        )

    def _shuffle(self, _: Operation, value: Any, seed: int = 0, seed2: int = 0) -> Any:
        found = self._next_seed("tf.random.shuffle", seed, seed2)
        keys = tf.random.stateless_uniform(tf.shape(value)[:1], found)
        return tf.gather(value, tf.argsort(keys))

    def _multinomial(
        self,
        _: Operation,
        logits: Any,
        num_samples: Any,
        seed: int = 0,
        seed2: int = 0,
        output_dtype: Any = tf.int64,
    ) -> Any:
        found = self._next_seed("tf.random.categorical", seed, seed2)
        return tf.random.stateless_categorical(logits, num_samples, found, output_dtype)

    def _gamma(self, _: Operation, shape: Any, alpha: Any, seed: int = 0, seed2: int = 0) -> Any:
        found = self._next_seed("tf.random.gamma", seed, seed2)
        alpha = tf.convert_to_tensor(alpha)
        return tf.random.stateless_gamma(_for_each(alpha, shape), found, alpha, dtype=alpha.dtype)

    def _poisson(
        self,
        _: Operation,
        shape: Any,
        rate: Any,
        seed: int = 0,
        seed2: int = 0,
        dtype: Any = tf.int64,
    ) -> Any:
        found = self._next_seed("tf.random.poisson", seed, seed2)
        rate = tf.convert_to_tensor(rate)
        return tf.random.stateless_poisson(_for_each(rate, shape), found, rate, dtype)


def _for_each(parameter: Any, shape: Any) -> Any:
    """Returns the shape of the result if `shape` is drawn for each element of a parameter."""
    return tf.concat([tf.cast(shape, tf.int32), tf.shape(parameter)], 0)


def _unnamed(draw: Operation) -> Operation:
    """Wraps an operation to ignore the argument `name`, which TensorFlow may pass."""

    def unnamed(original: Operation, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("name", None)
        return draw(original, *args, **kwargs)

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
