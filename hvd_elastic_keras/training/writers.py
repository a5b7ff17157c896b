"""Keras callbacks that write files: how they go on on another worker when rank 0 changes."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path
from typing import Any

import keras

from hvd_elastic_keras import files


class _NotSaved:
    """Stands for a model of which `ModelCheckpoint` is not to save anything here."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._missed: list[tuple[int, str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Saves nothing."""
        self._miss("save", args, kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """Saves nothing."""
        self._miss("save_weights", args, kwargs)

    def save_missed(self) -> None:
        """Saves what rank 0 was to save since the last step: it may have been killed meanwhile."""
        for step, method, args, kwargs in self._missed:
            if step == self._step():
                getattr(self._model, method)(*args, **kwargs)

    def _miss(self, method: str, args: Any, kwargs: Any) -> None:
        step = self._step()
        self._missed = [m for m in self._missed if m[0] == step]
        self._missed.append((step, method, args, kwargs))

    def _step(self) -> int:
        return int(self._model.optimizer.iterations)


def let_save(callback: keras.callbacks.Callback, model: keras.Model, saves: bool) -> None:
    """Lets a `ModelCheckpoint` save, or only remember what it would have saved."""
    if not isinstance(callback, keras.callbacks.ModelCheckpoint):
        return
    stands_in = isinstance(callback._model, _NotSaved)
    if saves and stands_in:
        callback._model.save_missed()
    if saves == stands_in:
        callback._model = model if saves else _NotSaved(model)


def pause(callback: keras.callbacks.Callback) -> None:
    """Lets go of a callback's files: this worker is not, or no longer, rank 0."""
    if isinstance(callback, keras.callbacks.CSVLogger) and callback.csv_file is not None:
        callback.csv_file.close()
    if isinstance(callback, keras.callbacks.TensorBoard) and callback._writers:
        callback._close_writers()
        if callback._global_train_batch == 0:
            _take_back(callback)
        callback._writers = {}


def _take_back(callback: keras.callbacks.TensorBoard) -> None:
    """Removes what a `TensorBoard` wrote when it got its model: another worker writes the same."""
    for directory in (callback._train_dir, callback._val_dir):
        for path in Path(directory).glob(f"events.out.tfevents.*.{os.getpid()}.*"):
            path.unlink(missing_ok=True)


def begin_late(
    callback: keras.callbacks.Callback,
    model: keras.Model,
    history: keras.callbacks.History,
    *,
    first_missing_epoch: int,
    train_batches: int,
    test_batches: int,
    evaluates: bool,
) -> None:
    """Begins a callback in the middle of a training: rank 0 was another worker so far.

    Args:
      history: the metrics of all finished epochs.
      first_missing_epoch: the epoch that comes next; later ones on file have been lost since.
      train_batches, test_batches: batches so far, as the callback would have counted them.
      evaluates: whether an evaluation has begun and not ended.
    """
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        callback._current_epoch = first_missing_epoch
        return  # to begin would mean to restore, and the state here is newer
    if isinstance(callback, keras.callbacks.CSVLogger):
        _begin_csv(callback, history, first_missing_epoch)
        return
    if isinstance(callback, keras.callbacks.TensorBoard) and not callback._writers:
        callback.set_model(model)
    callback.on_train_begin({})
    if isinstance(callback, keras.callbacks.TensorBoard):
        callback._global_train_batch = train_batches
        callback._global_test_batch = test_batches
        callback._epoch_start_time = time.time()
        # Whether values are recorded depends on the number of the batch that has begun.
        callback._pop_writer()
        callback._push_writer(callback._train_writer, train_batches)
        if evaluates:
            callback.on_test_begin({})


def flush(callback: keras.callbacks.Callback, hook: str) -> None:
    """Hands what a hook of `TensorBoard` wrote to the system: a kill would take it along."""
    if not isinstance(callback, keras.callbacks.TensorBoard) or not hook.endswith("_end"):
        return
    if "batch" not in hook or callback.update_freq != "epoch":
        for writer in callback._writers.values():
            writer.flush()


def _begin_csv(callback: Any, history: keras.callbacks.History, first_missing_epoch: int) -> None:
    """Goes on with a log, one row per epoch: drops those to come, adds those that are missing."""
    path = Path(callback.filename)
    written: set[int] = set()
    if path.exists():
        with path.open(newline="") as file:
            rows = list(csv.reader(file, delimiter=callback.sep))
        kept = [row for row in rows if row and not _is_epoch_from(row[0], first_missing_epoch)]
        written = {int(row[0]) for row in kept if row[0].isdecimal()}
        if len(kept) != len(rows):
            files.write_atomically(path, lambda p: _write_rows(p, kept, callback.sep))
    callback.append = True
    callback.on_train_begin({})
    for index, epoch in enumerate(history.epoch):
        if epoch not in written and epoch < first_missing_epoch:
            logs = {
                name: values[index]
                for name, values in history.history.items()
                if index < len(values)
            }
            callback.on_epoch_end(epoch, logs)


def _is_epoch_from(text: str, epoch: int) -> bool:
    return text.isdecimal() and int(text) >= epoch


def _write_rows(path: Path, rows: list[list[str]], separator: str) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
