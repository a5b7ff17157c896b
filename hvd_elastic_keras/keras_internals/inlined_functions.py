"""Traces the user's `tf.function`s as a part of the step, not as functions of their own.

A `tf.function` has a graph of its own, and the graph around it cannot use its tensors. A step keeps
gradients and assignments wherever the user's code makes them, so all of the step must be one graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.patches import replaced
from hvd_elastic_keras.keras_internals.tensorflow_names import (
    PolymorphicFunction,
    ag_ctx,
    py_func_from_autograph,
)


@contextlib.contextmanager
def inlined_functions() -> Iterator[None]:
    """Calls the Python code of each `tf.function`, converted by AutoGraph as usual.

    Functions for XLA stay as they are: Keras has them for operations that a CPU cannot do without
    XLA, such as convolutions in groups.

    Only calls in the present thread change. Each call traces the code anew: no earlier trace is
    used.
    """

    def inlined(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        if function._jit_compile:
            return original(function, *args, **kwargs)
        options = function._experimental_autograph_options
        code, status = function.python_function, ag_ctx.Status.DISABLED
        if function._autograph:
            code, status = py_func_from_autograph(code, options), ag_ctx.Status.ENABLED
        try:
            with ag_ctx.ControlStatusCtx(status=status, options=options):
                return code(*args, **kwargs)
        except Exception as error:
            if refusal := _refusal_within(error):
                raise refusal from None
            raise

    with replaced(PolymorphicFunction, "__call__", inlined):
        yield


def _refusal_within(error: BaseException | None) -> ConfigurationError | None:
    """Returns the error raised first. AutoGraph raises another one, with the user's lines."""
    while error is not None:
        if isinstance(error, ConfigurationError):
            return error
        error = error.__context__
    return None
