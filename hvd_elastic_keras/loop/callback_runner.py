"""Runs the user's Keras callbacks on every worker; only rank 0 writes outside of its process.

All workers see the same logs, so that a callback such as `EarlyStopping` decides the same
everywhere. A late joiner takes over the state of the root's callbacks.

* Callbacks that only write files or send reports (`WRITERS`) run on rank 0 only.
* `ModelCheckpoint` has a memory (the best value, when it last saved). So it runs everywhere, but
  saves on rank 0 only, unless its path is in a worker's own directory for temporary files. One of a
  derived class saves as the rest of a script does: one worker saves, and the others wait.
* The printed output of callbacks is shown from rank 0 only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.common.errors import ElasticError
from hvd_elastic_keras.keras_internals import early_optimizers, file_writers
from hvd_elastic_keras.keras_internals.file_writers import RepeatedRecords
from hvd_elastic_keras.loop import raised_error
from hvd_elastic_keras.loop.root_callback import RootCallback
from hvd_elastic_keras.state import one_writer
from hvd_elastic_keras.state.callback_memory import CallbackMemory

WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.RemoteMonitor,
    RootCallback,
)
"""Callbacks that only have an effect outside of the process."""
WRITTEN_TO = {
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.TensorBoard: "log_dir",
    keras.callbacks.BackupAndRestore: "backup_dir",
}
"""The attributes in which callbacks hold the path that they write to."""
EVALUATES = {"on_test_begin": True, "on_test_end": False}
BEFORE_BATCH = ("on_train_batch_begin", "on_batch_begin")
BEFORE_STEP = ("on_epoch_begin", *BEFORE_BATCH)
COUNTED = ("on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin")
STEPS_OF_TAKE_OVER = 2
"""Steps in which a new rank 0 removes records that it writes a second time.

A killed rank 0 may have been one step ahead of the others.
"""


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of a hook, and the counts before it."""

    hook: str
    position: tuple[Any, ...]
    logs: dict[str, Any]
    counts: dict[str, int]
    evaluates: bool


class CallbackRunner:
    """The callbacks of one training run, in the order the user gave.

    Attributes:
      raised: the error that a callback has raised; None if there is none. No hook is called after
        it. `fit` raises it when all workers have agreed on how the training goes on.

    Args:
      callbacks: the user's callbacks. A `History` among them is used, else one is added at the end.
      model: the model they belong to.
      params: for `set_params`; None if Keras has already called `set_model` and `set_params`.
      data_draw: whether the data may draw from `random` and `np.random`, too. The states of these
        generators are not those of the callbacks then, and are not sent.
    """

    def __init__(
        self,
        callbacks: Iterable[keras.callbacks.Callback],
        model: keras.Model,
        params: dict[str, Any] | None,
        *,
        data_draw: bool = False,
    ) -> None:
        self._model = model
        self._callbacks = list(callbacks)
        found = [c for c in self._callbacks if isinstance(c, keras.callbacks.History)]
        self.history = found[0] if found else keras.callbacks.History()
        if not found:
            # Last, as in Keras: callbacks before it add entries to the logs of an epoch.
            self._callbacks.append(self.history)
        self._writes = any(isinstance(c, WRITERS) for c in self._callbacks)
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._rank = 0
        self._counts = dict.fromkeys(COUNTED, 0)
        self._evaluates = False
        self._recent: list[_Call] = []
        """Calls that rank 0 may not have begun, or not finished, if it is lost now."""
        self._written_again: list[RepeatedRecords] = []
        self._steps_of_take_over = 0
        self._has_stepped = False
        self.raised: Exception | None = None
        self._memory = CallbackMemory(self._callbacks, model, WRITERS, data_draw=data_draw)
        if params is not None:
            for callback in self._callbacks:
                callback.set_model(model)
                callback.set_params({"verbose": 0, **params})

    @property
    def paths(self) -> list[tuple[str, str]]:
        """Names of callbacks that write for all workers, with the paths that they write to."""
        found = []
        for callback in self._callbacks:
            for kind, name in WRITTEN_TO.items():
                path = getattr(callback, name, None)
                each = kind is keras.callbacks.ModelCheckpoint and one_writer.is_own(path)
                if isinstance(callback, kind) and isinstance(path, str | os.PathLike) and not each:
                    text = os.fspath(path)
                    shown = text if "://" in text else os.path.abspath(text)
                    found.append((type(callback).__name__, shown))
        return found

    @property
    def tensorboard_dir(self) -> str | None:
        """Directory of the user's `TensorBoard`; None if there is none, or it is not on a disk."""
        found = (c for c in self._callbacks if isinstance(c, keras.callbacks.TensorBoard))
        directories = [str(c.log_dir) for c in found if "://" not in str(c.log_dir)]
        return os.path.abspath(directories[0]) if directories else None

    def calls_before_batch(self) -> bool:
        """Whether a callback has a hook before training batches; not counting `WRITERS`."""
        active = (c for c in self._callbacks if not isinstance(c, WRITERS))
        return any(_overrides(c, hook) for c in active for hook in BEFORE_BATCH)

    def enter_round(self, rank: int, epochs_begun: int | None) -> None:
        """Takes a rank, and begins the callbacks that run here for the first time.

        Args:
          epochs_begun: epoch of the next step, from 0; None if the training has not begun.
        """
        self._rank = rank
        is_first = not self._begun
        for index, callback in enumerate(self._callbacks):
            with one_writer.direct():
                saves = rank == 0 or one_writer.is_own(getattr(callback, "filepath", None))
                file_writers.let_save(callback, self._model, saves)
            if not self._active(callback):
                file_writers.pause(callback)
                self._begun.discard(index)
            elif index not in self._begun:
                self._begun.add(index)
                with self._output(), self._seen_before_step():
                    self._begin(callback, epochs_begun)
        if epochs_begun is not None:
            self._note_step()
        if is_first:
            self._memory.name_what_is_lost()

    def _begin(self, callback: keras.callbacks.Callback, epochs_begun: int | None) -> None:
        if epochs_begun is None or not isinstance(callback, WRITERS):
            self._memory.begin(callback, goes_on=epochs_begun is not None)
        else:
            self._take_over(callback, epochs_begun)

    def _take_over(self, callback: keras.callbacks.Callback, epochs_begun: int) -> None:
        """Begins a callback where it stood on a lost rank 0, and repeats its last calls."""
        again = isinstance(callback, RootCallback) or file_writers.misses_calls(callback)
        calls = self._recent if again else []
        counts = calls[0].counts if calls else self._counts
        file_writers.begin_late(
            callback,
            self._model,
            self.history,
            first_missing_epoch=epochs_begun,
            train_batches=counts["on_train_batch_begin"],
            train_batches_ended=counts["on_train_batch_end"],
            test_batches=counts["on_test_batch_begin"],
            evaluates=calls[0].evaluates if calls else self._evaluates,
        )
        records = file_writers.written_again(callback)
        if records is not None:
            self._written_again.append(records)
            self._steps_of_take_over = STEPS_OF_TAKE_OVER
        if isinstance(callback, RootCallback) and callback.repeat_epochs:
            self._repeat_epochs(callback, calls)
        for call in calls:
            _invoke(callback, call.hook, call.position, dict(call.logs))
            file_writers.flush(callback, call.hook)
        self._take_out_what_is_twice()

    def _repeat_epochs(self, callback: RootCallback, calls: Iterable[_Call]) -> None:
        """Reports the finished epochs again, except those whose end is among `calls`."""
        follow = {call.position[0] for call in calls if call.hook == "on_epoch_end"}
        for index, epoch in enumerate(self.history.epoch):
            if epoch not in follow:
                logs = {k: v[index] for k, v in self.history.history.items() if index < len(v)}
                _invoke(callback, "on_epoch_end", (epoch,), logs)

    def all_are_as_far(self) -> None:
        """Notes that a collective has completed: all workers have made all calls before it."""
        self._recent.clear()
        if self._written_again:
            self._steps_of_take_over -= 1
            if self._steps_of_take_over <= 0:
                self._written_again.clear()

    def _take_out_what_is_twice(self) -> None:
        for again in self._written_again:
            again.take_out()

    def call(self, hook: str, *args: Any) -> None:
        """Calls a hook, such as `on_epoch_begin`, of all active callbacks.

        Args:
          args: as Keras gives them: epoch or batch, if any, and the logs, which may be empty, in
            Keras's order. It is the order of `History`.
        """
        if self.raised is not None:
            return
        *position, logs = args
        if self._writes:
            counted = (dict(self._counts), self._evaluates)
            self._recent.append(_Call(hook, tuple(position), dict(logs), *counted))
        if hook in self._counts:
            self._counts[hook] += 1
        if hook in EVALUATES:
            self._evaluates = EVALUATES[hook]
        if hook not in BEFORE_STEP:
            self._note_step()
        with self._output(), self._seen_before_step():
            try:
                self._call_active(hook, position, logs)
            except (ElasticError, tf.errors.OpError):
                raise
            except Exception as error:  # code of the user may raise anything
                self.raised = error
            self._take_out_what_is_twice()

    def _call_active(self, hook: str, position: Iterable[Any], logs: dict[str, Any]) -> None:
        for callback in self._callbacks:
            if self._active(callback):
                _invoke(callback, hook, position, logs)
                file_writers.flush(callback, hook)

    def end(self, logs: dict[str, Any], *, again: bool) -> None:
        """Calls `on_train_end`, once for each callback.

        Args:
          again: whether some worker has called `on_train_end` of all its callbacks. Then only
            `WRITERS` are called: the former rank 0 may have been lost before it came to them.
        """
        with self._output():
            for index, callback in enumerate(self._callbacks):
                due = index not in self._ended and (not again or isinstance(callback, WRITERS))
                if self._active(callback) and due:
                    self._ended.add(index)
                    with _saving_of(callback):
                        callback.on_train_end(logs)

    def pause(self) -> None:
        """Closes the callbacks' files: another call of `fit` goes on with them, maybe elsewhere."""
        for callback in self._callbacks:
            file_writers.pause(callback)

    def succeed(self, before: CallbackRunner) -> None:
        """Takes over the last calls of an earlier `fit` if this worker was not rank 0 in it.

        If this worker is rank 0 now, it repeats these calls.
        """
        if before is not self and before._rank != 0:
            self._recent = list(before._recent)

    def state(self) -> dict[str, Any]:
        """Returns the memory of the callbacks, as far as it can be sent to another worker."""
        counts = dict(self._counts)
        raised = [] if self.raised is None else raised_error.packed(self.raised)
        return {
            **{"counts": counts, "evaluates": self._evaluates, "raised": raised},
            **self._memory.state(),
        }

    def unsendable_warning(self) -> str:
        """Returns a warning that names the attributes that cannot be sent to another worker.

        The warning is empty if there are none.
        """
        return self._memory.unsendable_warning()

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over the state of the root's callbacks.

        Raises:
          ConfigurationError: it cannot be told which state belongs to which callback.
        """
        self._counts = dict(state["counts"])
        self._recent.clear()  # the root has made these calls, or did so before it sent its state
        self._evaluates = state["evaluates"]
        if state.get("raised"):
            self.raised = raised_error.unpacked(state["raised"])
        self._memory.restore(state)

    def _active(self, callback: keras.callbacks.Callback) -> bool:
        return self._rank == 0 or not isinstance(callback, WRITERS)

    def _seen_before_step(self) -> contextlib.AbstractContextManager[None]:
        """Shows the model to callbacks as plain Keras has it before its first step."""
        if self._has_stepped:
            return contextlib.nullcontext()
        return early_optimizers.as_before_first_step(self._model)

    def _note_step(self) -> None:
        if not self._has_stepped:
            self._has_stepped = True
            early_optimizers.forget(self._model)

    def _output(self) -> contextlib.AbstractContextManager[Any]:
        if self._rank == 0:
            return contextlib.nullcontext()
        return contextlib.redirect_stdout(io.StringIO())


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
    own = vars(callback).get(hook, getattr(type(callback), hook))
    return own is not getattr(keras.callbacks.Callback, hook)


def _invoke(
    callback: keras.callbacks.Callback, hook: str, position: Iterable[Any], logs: dict[str, Any]
) -> None:
    method = getattr(callback, hook)
    with _saving_of(callback):
        if "batch" in hook:  # by name, as Keras does
            method(*position, logs=logs)
        else:
            method(*position, logs)


def _saving_of(callback: keras.callbacks.Callback) -> contextlib.AbstractContextManager[None]:
    """Lets callbacks that save on rank 0 only save alone: no other worker would take part."""
    alone = isinstance(callback, WRITERS) or file_writers.saves_on_root_only(callback)
    return one_writer.direct() if alone else contextlib.nullcontext()
