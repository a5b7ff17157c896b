"""The state of callbacks: the part that can be sent to another worker, and the part that cannot."""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import io
import itertools
import logging
import os
import queue
import sys
import tempfile
import threading
import types
from collections.abc import Container, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, Protocol, runtime_checkable

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.state import callback_variables, dataclass_values, json_codec
from hvd_elastic_keras.state.callback_globals import replace_content

log = logging.getLogger(__name__)

NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})
OWN_STATE = "__get_state__"
"""Name under which the result of a callback's `get_state` is sent."""
OWN_VARIABLES = "__variables__"
"""Name under which the variables that a callback holds are sent."""
KERAS = "keras."
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
NEVER_STATE = (
    # Operations and rules, which hold no state.
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType),
    *(types.CodeType, type, functools.partial, property, np.ufunc),
    *(keras.Loss, keras.Initializer, keras.Regularizer, keras.DTypePolicy),
    keras.optimizers.schedules.LearningRateSchedule,
    # Objects that are the same on all workers, or have a synchronisation of their own.
    *(keras.callbacks.Callback, keras.utils.PyDataset, tf.data.Dataset, tf.data.Iterator),
    *(tf.DType, tf.TensorSpec),
    *(argparse.Namespace, ml_collections.ConfigDict),
    # Objects that belong to one process.
    *(logging.Logger, logging.Handler, logging.LoggerAdapter, io.IOBase, types.TracebackType),
    *(threading.Thread, threading.Event, type(threading.Lock()), type(threading.RLock())),
    *(threading.Condition, threading.Semaphore, queue.Queue, futures.Executor, futures.Future),
    *(tf.summary.SummaryWriter, tempfile.TemporaryDirectory, tf.train.Checkpoint),
    *(tf.train.CheckpointManager, types.GeneratorType, types.SimpleNamespace),
)
"""Types of values that other workers do not need."""


@runtime_checkable
class Stateful(Protocol):
    """A callback that defines its own state."""

    def get_state(self) -> Any:
        """Returns the state that a late joiner needs, in values that can be sent."""

    def set_state(self, state: Any) -> None:
        """Takes over a result of `get_state` on another worker."""


def attributes(callback: keras.callbacks.Callback, model: keras.Model) -> dict[str, Any]:
    """Returns the state of a callback as JSON and bytes, as far as it can be encoded.

    Args:
      model: the trained model, whose variables are sent anyway.

    Raises:
      ConfigurationError: `get_state` of the callback returns a value that cannot be encoded.
    """
    encoded = {}
    for name, value in vars(callback).items():
        if name not in NOT_STATE and not _is_own_path(value):
            with contextlib.suppress(json_codec.NotEncodableError):
                encoded[name] = json_codec.encode(value)
    if variables := _variables_in(callback, model):
        encoded[OWN_VARIABLES] = callback_variables.encoded(variables)
    if isinstance(callback, Stateful):
        try:
            encoded[OWN_STATE] = json_codec.encode(callback.get_state())
        except json_codec.NotEncodableError as error:
            raise ConfigurationError(
                f"{type(callback).__name__}.get_state() returned something that cannot be sent to "
                f"another worker: {error}. Return numbers, texts, arrays, or lists, sets and dicts "
                "of these."
            ) from error
    return encoded


def set_attributes(
    callback: keras.callbacks.Callback, encoded: Mapping[str, Any], model: keras.Model
) -> dict[str, Any]:
    """Takes over the result of `attributes` for the same callback on another worker.

    If the class of a value is not loaded here, the attribute keeps its value and is named in the
    log.

    Returns:
      Values of variables that the callback has not made yet, by the places of their holders.
    """
    left: dict[str, Any] = {}
    for name, value in encoded.items():
        if name == OWN_VARIABLES:
            present = _variables_in(callback, model)
            left = callback_variables.assign(present, value)
        elif name == OWN_STATE:
            callback.set_state(json_codec.decode(value))
        elif not (name in vars(callback) and _is_the_same(getattr(callback, name), value)):
            # An equal value stays: code may compare objects by identity, such as a marker.
            try:
                _set(callback, name, json_codec.decode(value))
            except dataclass_values.UnknownClassError as error:
                log.warning("%s.%s is not taken over: %s", type(callback).__name__, name, error)
    return left


def _set(callback: keras.callbacks.Callback, name: str, value: Any) -> None:
    """Sets an attribute. A list stays the same object, unless another attribute is that, too."""
    present = vars(callback).get(name)
    is_shared = sum(other is present for other in vars(callback).values()) > 1
    if is_shared or isinstance(value, np.ndarray) or not replace_content(present, value):
        setattr(callback, name, value)


def _variables_in(
    callback: keras.callbacks.Callback, model: keras.Model
) -> callback_variables.Found:
    own = {name: value for name, value in vars(callback).items() if name not in NOT_STATE}
    return callback_variables.variables_in(own, model)


def _is_the_same(present: Any, encoded: Any) -> bool:
    try:
        return bool(json_codec.encode(present) == encoded)
    except json_codec.NotEncodableError:
        return False


def unsendable_warning(
    callbacks: Iterable[keras.callbacks.Callback],
    encoded: Iterable[Container[str]] | None = None,
) -> dict[str, str]:
    """Returns the attributes of callbacks that a late joiner cannot get, with their types.

    Leaves out the attributes of Keras's own callbacks, which need them in one process only. Leaves
    out values that are no state by their nature.

    Args:
      encoded: result of `attributes` for each callback, if known.

    Example: `{"MyCallback.tracker": "a Tracker"}`
    """
    return {
        f"{type(callback).__name__}.{name}": lost
        for callback, sent in zip(callbacks, encoded or itertools.repeat(()), strict=False)
        if not isinstance(callback, Stateful)
        for name, value in vars(callback).items()
        if name not in sent and name not in NOT_STATE | frozenset(_names_in_code(type(callback)))
        for lost in [_lost_in_attribute(value)]
        if lost
    }


def warning_of(lost: dict[str, str]) -> str:
    """Returns a warning about the findings of `unsendable_warning`, with advice; empty if none."""
    if not lost:
        return ""
    found = ", ".join(f"{name} ({kind})" for name, kind in lost.items())
    return (
        f"workers that join later do not get these attributes of callbacks: {found}. If "
        "they change during the training, keep numbers, texts, arrays or lists, sets and dicts of "
        "these instead, or give the callback get_state() and set_state(state)."
    )


def _lost_in_attribute(value: Any) -> str:
    try:
        return _lost_in(value)
    except RecursionError:
        return _name_of(value)  # the value contains itself


def _lost_in(value: Any) -> str:
    """Returns the type of the value, or of one in it, that is state and cannot be sent; else ""."""
    if _can_be_sent(value):
        return ""
    if dataclass_values.is_frozen(value):
        # A dataclass that holds objects is settings, not state. If all fields can be sent, the
        # class is the reason.
        fields = dataclass_values.fields_of(value).values()
        return _name_of(value) if all(map(_can_be_sent, fields)) else ""
    if not isinstance(value, CONTAINERS):
        return "" if _is_no_state(value) else _name_of(value)
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
    if all(map(_can_be_sent, inner)):
        return _name_of(value)  # the container itself cannot be sent, such as a named tuple
    lost = next((text for text in (_lost_in(v) for v in inner) if text), "")
    return f"{type(value).__name__} of {lost}" if lost else ""


def _can_be_sent(value: Any) -> bool:
    try:
        json_codec.encode(value)
    except json_codec.NotEncodableError:
        return False
    return True


def _is_no_state(value: Any) -> bool:
    kind = type(value).__module__
    return (
        isinstance(value, NEVER_STATE)
        or callback_variables.is_carried(value)
        or hasattr(value, "get_concrete_function")
        # An object of Python's own modules in C, such as `csv.writer`, a lock or a socket.
        or (kind.startswith("_") and kind in sys.stdlib_module_names)
        or hasattr(value, "fileno")
    )


def _name_of(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"a {kind.__name__}"


def _names_in_code(kind: type) -> Iterator[str]:
    """Yields the names in the code of the Keras classes from which a callback is derived."""
    for base in kind.__mro__:
        if base.__module__.startswith(KERAS):
            for member in vars(base).values():
                function = getattr(member, "fget", member)
                code = getattr(function, "__code__", None)
                yield from code.co_names if code else ()


def _is_own_path(value: Any) -> bool:
    """Whether a value is a path in this worker's directory for temporary files.

    Other workers do not have this directory.
    """
    if not isinstance(value, str | os.PathLike):
        return False
    scratch = tempfile.gettempdir()
    is_own = os.path.basename(scratch).startswith(env.SCRATCH_PREFIX)
    return is_own and os.fspath(value).startswith(scratch + os.sep)
