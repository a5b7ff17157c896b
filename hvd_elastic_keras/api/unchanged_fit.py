"""`Model.fit` of a script that knows nothing of this package: elastic under `run`.

A worker of a script installs this as soon as the script has imported Keras. `fit` then trains as if
an `ElasticCallback()` were among its callbacks. A script that takes part by itself, with
`ElasticCallback`, `Trainer`, `elastic` or `horovod`, decides which `fit` is elastic, and which one
each worker runs by itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from typing import Any

import keras
import tensorflow as tf

import hvd_elastic_keras
from hvd_elastic_keras.common import patches
from hvd_elastic_keras.keras_internals import model_building
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.state import keras_saving, tensorflow_summaries

WHY = "fit of a script that run starts is elastic"
TRAINS_ITSELF = ("ElasticCallback", "Trainer")
"""Names of this package by which a script says what is elastic."""
MODULES_THAT_TRAIN = ("hvd_elastic_keras.elastic", "hvd_elastic_keras.horovod")
STRATEGIES = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "experimental.CentralStorageStrategy",
)
"""Strategies of `tf.distribute` that compute what one device would compute."""


def install() -> None:
    """Makes `fit` elastic, and lets one worker save for all."""
    if patches.is_installed(WHY):
        return
    keras_saving.install()
    # A script that uses names of this package, such as `root_only`, says by itself who writes.
    for once in (
        keras_saving.install_for_libraries,
        keras_saving.install_for_directories,
        tensorflow_summaries.install,
    ):
        once(lambda: not hvd_elastic_keras.names_looked_up)
    original = keras.Model.fit
    signature = inspect.signature(original)
    pid = os.getpid()

    @functools.wraps(original)
    def fit(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != pid or _Running.depth:
            return original(model, *args, **kwargs)
        if not model.compiled:  # Keras's own error would look like that of a worker that has failed
            model_building.check_compiled(model)
        if script_decides():
            return original(model, *args, **kwargs)
        call = signature.bind(model, *args, **kwargs)
        given = call.arguments.get("callbacks")
        if _is_elastic(given):
            return original(model, *args, **kwargs)
        call.arguments["callbacks"] = _with_elastic(given)
        _Running.depth += 1
        try:
            return original(*call.args, **call.kwargs)
        finally:
            _Running.depth -= 1

    patches.install(keras.Model, "fit", fit, WHY)
    _ignore_strategies()


class _Running:
    """Whether a `fit` runs. Each worker by itself runs a `fit` that a callback calls in it."""

    depth = 0


def script_decides() -> bool:
    """Whether the script says by itself which of its trainings are elastic."""
    names = hvd_elastic_keras.names_looked_up.intersection(TRAINS_ITSELF)
    return bool(names) or any(module in sys.modules for module in MODULES_THAT_TRAIN)


def _is_elastic(given: Any) -> bool:
    """Whether the callbacks of a call of `fit` make it elastic.

    A function that was pickled, as by `run_function`, brings the callback along without its name.
    """
    from hvd_elastic_keras.api.callback import ElasticCallback

    callbacks = getattr(given, "callbacks", given)
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return any(isinstance(callback, ElasticCallback) for callback in listed)


def _with_elastic(given: Any) -> Any:
    """Returns the callbacks of a call of `fit` with an `ElasticCallback` for this call."""
    from hvd_elastic_keras.api.callback import ElasticCallback

    notices.tell_once(
        "[elastic] model.fit of this script trains on all workers, which share each batch; "
        "--noelastic_fit turns this off"
    )
    elastic = ElasticCallback()
    if isinstance(given, keras.callbacks.CallbackList):
        elastic.take_over(given)
        return given
    if given is None:
        return [elastic]
    return [*(given if isinstance(given, list | tuple) else [given]), elastic]


def _ignore_strategies() -> None:
    """Lets models made under a strategy of `tf.distribute` be made as without it."""

    original = tf.distribute.Strategy.scope

    @functools.wraps(original)
    def scope(self: Any) -> Any:
        if script_decides():
            return original(self)
        notices.tell_once(
            f"[elastic] the scope of {type(self).__name__} is ignored: the workers of the job "
            "share the batches, and each computes on one device"
        )
        return contextlib.nullcontext(self)

    for name in STRATEGIES:
        strategy = functools.reduce(getattr, name.split("."), tf.distribute)
        patches.install(strategy, "scope", scope, WHY)
