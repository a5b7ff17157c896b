"""Shows callbacks the optimizers as plain Keras has them before its first step: not built yet.

Steps are traced before `on_train_begin` here, and in the first step there. A callback that saves
the weights in `on_train_begin` would otherwise save slots such as momentum, too, and set them back
when it loads the file: plain Keras leaves the optimizer as it is then, because the file has fewer
variables. Finders of learning rates do so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from hvd_elastic_keras.keras_internals.model_variables import inner_optimizers, optimizers_of

_COUNT = "_elastic_variables_before"
"""Attribute of an optimizer that was built before the first step: the variables it had then."""


@contextlib.contextmanager
def built_early(model: keras.Model) -> Iterator[None]:
    """Notes the optimizers that are built in the block."""
    forget(model)
    before = [(o, len(o._variables)) for o in _all(model) if not o.built]
    yield
    for optimizer, count in before:
        if optimizer.built:
            object.__setattr__(optimizer, _COUNT, count)


def forget(model: keras.Model) -> None:
    """Ends the time before the first step."""
    for optimizer in _all(model):
        vars(optimizer).pop(_COUNT, None)


@contextlib.contextmanager
def as_before_first_step(model: keras.Model) -> Iterator[None]:
    """Lets the noted optimizers look as if they were not built, until the end of the block.

    One that is told to build itself in the block has its variables back at once.
    """
    hidden = [_Hidden(o) for o in optimizers_of(model) if _COUNT in vars(o)]
    try:
        yield
    finally:
        for optimizer in hidden:
            optimizer.show()


def _all(model: keras.Model) -> Iterator[Any]:
    for optimizer in optimizers_of(model):
        yield optimizer
        yield from inner_optimizers(optimizer)


class _Hidden:
    """An optimizer, with those that it holds, without the variables that it got when built."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._inner = [_Hidden(o) for o in inner_optimizers(optimizer) if _COUNT in vars(o)]
        # TensorFlow exports no object whose list was shortened, so another list takes its place.
        self._variables = optimizer._variables
        vars(optimizer)["_variables"] = list(self._variables)[: vars(optimizer)[_COUNT]]
        optimizer.built = False
        object.__setattr__(optimizer, "build", lambda _: self.show())

    def show(self) -> None:
        """Gives the variables back."""
        if "build" in vars(self._optimizer):
            object.__delattr__(self._optimizer, "build")
            vars(self._optimizer)["_variables"] = self._variables
            self._optimizer.built = True
        for inner in self._inner:
            inner.show()
