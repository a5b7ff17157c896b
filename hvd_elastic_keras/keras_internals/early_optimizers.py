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
            vars(optimizer)[_COUNT] = count


def forget(model: keras.Model) -> None:
    """Ends the time before the first step."""
    for optimizer in _all(model):
        vars(optimizer).pop(_COUNT, None)


@contextlib.contextmanager
def as_before_first_step(model: keras.Model) -> Iterator[None]:
    """Lets the noted optimizers look as if they were not built, until the end of the block.

    If one of them is told to build itself in the block, all have their variables back at once.
    """
    noted = [(o, o._variables) for o in _all(model) if _COUNT in vars(o)]

    def show(*_: Any) -> None:
        for optimizer, variables in noted:
            vars(optimizer).pop("build", None)
            vars(optimizer)["_variables"] = variables
            optimizer.built = True

    for optimizer, variables in noted:
        # TensorFlow exports no object whose list was shortened, so another list takes its place.
        vars(optimizer)["_variables"] = list(variables)[: vars(optimizer)[_COUNT]]
        vars(optimizer)["build"] = show
        optimizer.built = False
    try:
        yield
    finally:
        show()


def _all(model: keras.Model) -> list[Any]:
    """Returns the optimizers of a model and those that they hold, each once."""
    outer = optimizers_of(model)
    return list(
        {id(o): o for o in (*outer, *(i for o in outer for i in inner_optimizers(o)))}.values()
    )
