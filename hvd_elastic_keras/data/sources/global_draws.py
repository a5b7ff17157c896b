"""Random numbers that a user's Python code draws from the global generators of Python and NumPy.

These generators have one state for the whole process, so that a number depends on all draws before
it, in whichever thread. A worker that joins later has not made them. Here, each call of the user's
code (an element of a `py_function`, a batch of a `PyDataset`) draws from a seed of its own, and a
Python generator from a state of its own. Afterwards the state is what it was before.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.dataset_parts import next_functions_of_generators
from hvd_elastic_keras.keras_internals.global_seed import order_is_free
from hvd_elastic_keras.keras_internals.stateless_draws import mixed
from hvd_elastic_keras.keras_internals.traced_graphs import (
    function_of_token,
    replace_function_of_token,
)
from hvd_elastic_keras.observe.notices import notices

KEEPS_STATE = (
    "Python code in map(..., num_parallel_calls=...) gives something else each time that it is "
    "called with the same element, so that it would depend on the number of workers. It may have a "
    "generator of its own: draw from np.random or random in place of that. If the order of its "
    "calls matters, leave num_parallel_calls out; all workers then call it for all elements."
)
LOOKED_AT = 8
"""Calls of a function that show whether it draws numbers."""
_functions: list[Callable[..., Any]] = []
"""Functions that TensorFlow calls in place of the user's. It keeps no reference to them."""
_one_call = threading.RLock()
"""Held while the global generators have another state than that of the script."""


def state() -> tuple[Any, Any]:
    """Returns the states of the global generators."""
    return random.getstate(), np.random.get_state()


def set_state(states: tuple[Any, Any]) -> None:
    """Restores what `state` has returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])


def are_same(some: tuple[Any, Any], others: tuple[Any, Any]) -> bool:
    """Whether two results of `state` are the same."""
    (python, numpy), (others_python, others_numpy) = some, others
    same = python == others_python and numpy[2:] == others_numpy[2:]
    return bool(same and np.array_equal(numpy[1], others_numpy[1]))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keeps other threads from giving the global generators another state meanwhile."""
    with _one_call:
        yield


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Lets a block draw from a seed, one block at a time."""
    with _one_call:
        before = state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            set_state(before)


class SeededFunction:
    """A function that draws from a seed in each call. The calls may come from several threads.

    If its first calls draw nothing, later calls run at the same time.

    Args:
      told: text for people if it draws numbers that plain Keras would draw otherwise.
      keeps_no_state: whether to make its first calls twice, and to refuse it if it gives something
        else the second time.
    """

    def __init__(
        self, function: Callable[..., Any], told: str, *, keeps_no_state: bool = False
    ) -> None:
        self._function = function
        self._told = told
        self._keeps_no_state = keeps_no_state
        self._calls = self._checks = 0
        self._draws = False

    def __call__(self, seed: int, *arguments: Any) -> Any:
        """Calls the function with the arguments.

        Raises:
          ConfigurationError: the function must keep no state, and keeps one.
        """
        if self._calls >= LOOKED_AT and not self._draws:
            return self._function(*arguments)
        if not self._keeps_no_state or self._checks >= LOOKED_AT:
            return self._seeded(seed, arguments)
        self._checks += 1
        # The function may change arrays that it is given.
        given = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
        results = [self._seeded(seed, found) for found in (given, arguments)]
        if not all(map(_is_equal, *map(tf.nest.flatten, results))):
            raise ConfigurationError(KEEPS_STATE)
        return results[0]

    def _seeded(self, seed: int, arguments: tuple[Any, ...]) -> Any:
        with seeded(seed):
            if self._draws:
                return self._function(*arguments)
            before = state()
            try:
                return self._function(*arguments)
            finally:
                self._calls += 1
                if not are_same(before, state()):
                    self._draws = True
                    tell(self._told)


def _is_equal(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


class OwnState:
    """A state of its own for code that is called again and again, such as a Python generator.

    Args:
      told: as for `SeededFunction`.
      seed: determines the first state. None: the present state of the global generators.
    """

    def __init__(self, told: str, seed: int | None = None) -> None:
        self._told = told
        with contextlib.nullcontext() if seed is None else seeded(seed):
            self._state = state()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Lets a block go on where the last one has stopped drawing."""
        with _one_call:
            before = state()
            set_state(self._state)
            try:
                yield
            finally:
                after = state()
                if self._told and not are_same(self._state, after):
                    tell(self._told)
                    self._told = ""
                self._state = after
                set_state(before)


class GeneratorDraws:
    """Lets each iterator of a `from_generator` in a dataset draw from a state of its own.

    Two datasets are read in turns or at the same time, and threads read ahead: nothing else says
    how the draws of one follow on those of the other.

    Args:
      dataset: the user's dataset. Its Python functions are replaced for good: threads may go on
        reading ahead after the training.
      seed: the states follow from it, from the pass, and from the number of the iterator in the
        pass. Only the training begins with the present state, as in plain Keras.
      told: as for `SeededFunction`.
    """

    def __init__(self, dataset: tf.data.Dataset, seed: int, told: str) -> None:
        self._seed = seed
        self._told = told
        self._pass = (0, 0)
        self._made = 0
        self._states: dict[int, OwnState] = {}
        tokens = tuple(next_functions_of_generators(dataset))
        self._present = OwnState(told) if tokens else None
        for token in tokens:
            function = functools.partial(self._call, function_of_token(token))
            replace_function_of_token(token, function)
            _functions.append(function)

    def begin(self, reader: int, number: int) -> None:
        """Notes the pass of which the next iterators are.

        Args:
          reader: 0 for the training, 1 for the evaluation, 2 for what follows.
        """
        self._pass, self._made = (reader, number), 0

    def _call(self, function: Callable[..., Any], iterator: Any) -> Any:
        with _one_call:
            key = int(iterator)
            if key not in self._states:
                self._states[key] = self._first_state()
            with self._states[key].drawing():
                return function(iterator)

    def _first_state(self) -> OwnState:
        position, self._made = (*self._pass, self._made), self._made + 1
        if self._present is not None and not any(position):
            return self._present
        return OwnState(self._told, mixed(self._seed, *position))


def tell(text: str) -> None:
    """Tells people once that numbers are not those of plain `fit`, if a seed determines those."""
    if not order_is_free():
        notices.tell_once(text)
