"""Runs the user's Keras callbacks on every worker; those that write files on rank 0 only.

All workers see the same logs, so that a callback such as `EarlyStopping` decides the same
everywhere. A late joiner takes over the state that the root's callbacks have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import keras

from hvd_elastic_keras.training import codec

WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks with an effect outside of the process."""
NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


class CallbackRunner:
    """The callbacks of one training run, in the order the user gave."""

    def __init__(
        self, callbacks: Iterable[keras.callbacks.Callback], model: keras.Model, **params: Any
    ) -> None:
        self.history = keras.callbacks.History()
        # Last, as in Keras: callbacks before it add entries to the logs of an epoch.
        self._callbacks = [*callbacks, self.history]
        self._begun: set[int] = set()
        self._rank = 0
        for callback in self._callbacks:
            callback.set_model(model)
            callback.set_params({"verbose": 0, **params})

    def enter_round(self, rank: int, training_has_begun: bool) -> None:
        """Takes a rank; callbacks that run for the first time begin now."""
        self._rank = rank
        for index, callback in enumerate(self._callbacks):
            if self._active(callback) and index not in self._begun:
                self._begun.add(index)
                if training_has_begun and isinstance(callback, keras.callbacks.CSVLogger):
                    callback.append = True
                callback.on_train_begin()
                if training_has_begun and isinstance(callback, keras.callbacks.ModelCheckpoint):
                    _take_best_from(callback, self.history)

    def call(self, hook: str, *args: Any) -> None:
        """Calls a hook, such as `on_epoch_begin`, of all active callbacks."""
        for callback in self._callbacks:
            if self._active(callback):
                getattr(callback, hook)(*args)

    def state(self) -> list[dict[str, Any]]:
        """What the callbacks remember, as far as it can be sent to another worker."""
        return [_attributes(callback) for callback in self._callbacks]

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Takes over the state of the root's callbacks."""
        for callback, attributes in zip(self._callbacks, state, strict=True):
            for name, value in attributes.items():
                setattr(callback, name, codec.from_json(value))

    def _active(self, callback: keras.callbacks.Callback) -> bool:
        return self._rank == 0 or not isinstance(callback, WRITERS)


def _take_best_from(callback: Any, history: keras.callbacks.History) -> None:
    """Tells a `ModelCheckpoint` that starts late what the best value was so far.

    It has run on the former rank 0 only; without this it would overwrite the best model.
    """
    values = history.history.get(callback.monitor, [])
    if not callback.save_best_only or not values:
        return
    if callback.monitor_op is None:
        callback._set_monitor_op()
    for value in values:
        if callback._is_improvement(value, callback.best):
            callback.best = value


def _attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    encoded = {}
    for name, value in vars(callback).items():
        if name not in NOT_STATE:
            with contextlib.suppress(codec.NotEncodableError):
                encoded[name] = codec.to_json(value)
    return encoded
