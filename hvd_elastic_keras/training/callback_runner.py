"""Runs the user's Keras callbacks on every worker; what they write outside comes from rank 0.

All workers see the same logs, so that a callback such as `EarlyStopping` decides the same
everywhere. A late joiner takes over the state that the root's callbacks have.

* Callbacks that only write files (`WRITERS`) run on rank 0.
* `ModelCheckpoint` remembers (the best value, when it last saved), so it runs everywhere, but
  saves on rank 0 only.
* What callbacks print is shown from rank 0 only.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from typing import Any

import keras

from hvd_elastic_keras.training import codec, writers

WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks that only have an effect outside of the process."""
NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})
EVALUATES = {"on_test_begin": True, "on_test_end": False}
COUNTED = ("on_train_batch_begin", "on_test_batch_begin")


class CallbackRunner:
    """The callbacks of one training run, in the order the user gave.

    Args:
      callbacks: the user's; a `History` among them is used, else one is added at the end.
      model: the model they belong to.
      params: for `set_params`; None if Keras has already called `set_model` and `set_params`.
    """

    def __init__(
        self,
        callbacks: Iterable[keras.callbacks.Callback],
        model: keras.Model,
        params: dict[str, Any] | None,
    ) -> None:
        self._model = model
        self._callbacks = list(callbacks)
        found = [c for c in self._callbacks if isinstance(c, keras.callbacks.History)]
        self.history = found[0] if found else keras.callbacks.History()
        if not found:
            # Last, as in Keras: callbacks before it add entries to the logs of an epoch.
            self._callbacks.append(self.history)
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._rank = 0
        self._counts = dict.fromkeys(COUNTED, 0)
        self._evaluates = False
        if params is not None:
            for callback in self._callbacks:
                callback.set_model(model)
                callback.set_params({"verbose": 0, **params})

    def enter_round(self, rank: int, epochs_begun: int | None) -> None:
        """Takes a rank; callbacks that run for the first time begin now.

        Args:
          epochs_begun: epochs whose beginning is past; None if the training has not begun.
        """
        self._rank = rank
        for index, callback in enumerate(self._callbacks):
            writers.let_save(callback, self._model, rank == 0)
            if not self._active(callback):
                writers.pause(callback)
                self._begun.discard(index)
            elif index not in self._begun:
                self._begun.add(index)
                with self._output():
                    self._begin(callback, epochs_begun)

    def _begin(self, callback: keras.callbacks.Callback, epochs_begun: int | None) -> None:
        if epochs_begun is None:
            callback.on_train_begin({})
        elif not isinstance(callback, WRITERS):
            # It forgets what it remembers, which may come from a checkpoint.
            remembered = _attributes(callback)
            callback.on_train_begin({})
            _set_attributes(callback, remembered)
        else:
            writers.begin_late(
                callback,
                self._model,
                self.history,
                first_missing_epoch=epochs_begun,
                train_batches=self._counts["on_train_batch_begin"],
                test_batches=self._counts["on_test_batch_begin"],
                evaluates=self._evaluates,
            )

    def call(self, hook: str, *args: Any) -> None:
        """Calls a hook, such as `on_epoch_begin`, of all active callbacks.

        Args:
          args: as Keras gives them: epoch or batch, if any, and the logs, which may be empty.
        """
        *position, logs = args
        if hook in self._counts:
            self._counts[hook] += 1
        if hook in EVALUATES:
            self._evaluates = EVALUATES[hook]
        with self._output():
            for callback in self._callbacks:
                if self._active(callback):
                    method = getattr(callback, hook)
                    if "batch" in hook:  # by name, as Keras does
                        method(*position, logs=logs)
                    else:
                        method(*position, logs)
                    writers.flush(callback, hook)

    def end(self, logs: dict[str, Any], *, again: bool) -> None:
        """Calls `on_train_end`, once for each callback.

        Args:
          again: whether all have been called on some worker. Then only those are called that begin
            and end on rank 0: the former one may have gone before it came to them.
        """
        with self._output():
            for index, callback in enumerate(self._callbacks):
                due = index not in self._ended and (not again or isinstance(callback, WRITERS))
                if self._active(callback) and due:
                    self._ended.add(index)
                    callback.on_train_end(logs)

    def state(self) -> dict[str, Any]:
        """What the callbacks remember, as far as it can be sent to another worker."""
        attributes = [{} if isinstance(c, WRITERS) else _attributes(c) for c in self._callbacks]
        return {"counts": self._counts, "evaluates": self._evaluates, "attributes": attributes}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes over the state of the root's callbacks."""
        self._counts = dict(state["counts"])
        self._evaluates = state["evaluates"]
        for callback, attributes in zip(self._callbacks, state["attributes"], strict=True):
            _set_attributes(callback, attributes)

    def _active(self, callback: keras.callbacks.Callback) -> bool:
        return self._rank == 0 or not isinstance(callback, WRITERS)

    def _output(self) -> contextlib.AbstractContextManager[Any]:
        if self._rank == 0:
            return contextlib.nullcontext()
        return contextlib.redirect_stdout(io.StringIO())


def _attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    encoded = {}
    for name, value in vars(callback).items():
        if name not in NOT_STATE:
            with contextlib.suppress(codec.NotEncodableError):
                encoded[name] = codec.to_json(value)
    return encoded


def _set_attributes(callback: keras.callbacks.Callback, encoded: dict[str, Any]) -> None:
    for name, value in encoded.items():
        setattr(callback, name, codec.from_json(value))
