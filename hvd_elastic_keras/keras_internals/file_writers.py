"""Continues Keras callbacks that write files on another worker when rank 0 changes.

`RepeatedRecords` is for event files of TensorBoard that several workers have written, one after the
other. A worker that takes over from a killed rank 0 cannot know whether rank 0 had written the last
records. So it writes them again. Records that exist twice are then removed from the old file.

`weights_on_disk` saves a model without a second copy of its weights in memory.
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.saving import saving_lib

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.patches import replaced

NEWEST_FILES = 2
"""This many files of other processes in each directory may end with records that come again."""
Key = tuple[str, int]
"""Tag and step of a record."""


def weights_on_disk() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which Keras makes the weights of a `.keras` file beside that file.

    Keras makes them in memory, and copies them there once more, if the host has enough of it. It
    does not see the limit of a container: the job would end when all is trained.
    """
    if not hasattr(saving_lib, "is_memory_sufficient"):
        return contextlib.nullcontext()
    return replaced(saving_lib, "is_memory_sufficient", lambda original, model: False)


class _NotSaved:
    """Stands in for a model, so that `ModelCheckpoint` saves nothing on this worker."""

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
        """Makes rank 0's saves since the last step: rank 0 may have been killed before them."""
        for step, method, args, kwargs in self._missed:
            if step == self._step():
                getattr(self._model, method)(*args, **kwargs)

    def _miss(self, method: str, args: Any, kwargs: Any) -> None:
        step = self._step()
        self._missed = [m for m in self._missed if m[0] == step]
        self._missed.append((step, method, args, kwargs))

    def _step(self) -> int:
        return int(self._model.optimizer.iterations)


def saves_on_root_only(callback: keras.callbacks.Callback) -> bool:
    """Whether it is a `ModelCheckpoint` of which only that of rank 0 saves.

    One of a class derived from it may read the file that it has saved. So it saves as any other
    code of a script does: one worker saves, and the others wait until the file is there.
    """
    return type(callback) is keras.callbacks.ModelCheckpoint


def let_save(callback: keras.callbacks.Callback, model: keras.Model, saves: bool) -> None:
    """Lets a `ModelCheckpoint` save, or only remember what it would have saved."""
    if not saves_on_root_only(callback):
        return
    stands_in = isinstance(callback._model, _NotSaved)
    if saves and stands_in:
        callback._model.save_missed()
    if saves == stands_in:
        callback._model = model if saves else _NotSaved(model)


def pause(callback: keras.callbacks.Callback) -> None:
    """Closes a callback's files: this worker is not rank 0, or is no longer rank 0."""
    if isinstance(callback, keras.callbacks.CSVLogger) and callback.csv_file is not None:
        callback.csv_file.close()
    if isinstance(callback, keras.callbacks.TensorBoard) and callback._writers:
        callback._close_writers()
        if callback._global_train_batch == 0:
            _take_back(callback)
        callback._writers = {}


def _take_back(callback: keras.callbacks.TensorBoard) -> None:
    """Removes files that a `TensorBoard` wrote on getting its model: another worker writes them."""
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
    train_batches_ended: int,
    test_batches: int,
    evaluates: bool,
) -> None:
    """Begins a callback in the middle of a training, because rank 0 was another worker so far.

    Args:
      history: the metrics of all finished epochs.
      first_missing_epoch: the epoch that comes next. A file may have epochs from this one on: they
        have been lost since.
      train_batches, train_batches_ended, test_batches: numbers of batches so far, as the callback
        would have counted them.
      evaluates: whether an evaluation has begun and not ended.
    """
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        callback._current_epoch = first_missing_epoch
        if callback.save_freq != "epoch":
            callback._batches_seen_since_last_saving = train_batches_ended % callback.save_freq
        return  # beginning would restore a backup, and the state here is newer
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


def written_again(callback: keras.callbacks.Callback) -> RepeatedRecords | None:
    """Returns an object that removes records if a callback that began late writes them again.

    None if the callback is no `TensorBoard`.
    """
    if not isinstance(callback, keras.callbacks.TensorBoard):
        return None
    _flush_all(callback._writers.values())
    return RepeatedRecords((Path(callback._train_dir), Path(callback._val_dir)))


def misses_calls(callback: keras.callbacks.Callback) -> bool:
    """Whether a callback that begins late needs the calls that its predecessor may have missed.

    `CSVLogger` gets all that matters from the history. Data sent to a server cannot be found again.
    """
    return isinstance(callback, keras.callbacks.TensorBoard | keras.callbacks.BackupAndRestore)


def flush(callback: keras.callbacks.Callback, hook: str) -> None:
    """Flushes what a hook wrote to the system. Otherwise a killed process would lose it."""
    if isinstance(callback, keras.callbacks.TensorBoard):
        if type(callback) is not keras.callbacks.TensorBoard:
            # The user's subclass may write at any time, and with other writers.
            own = [v for v in vars(callback).values() if isinstance(v, tf.summary.SummaryWriter)]
            _flush_all([*callback._writers.values(), *own])
        elif hook.endswith("_end") and ("batch" not in hook or callback.update_freq != "epoch"):
            _flush_all(callback._writers.values())
    elif isinstance(callback, keras.callbacks.CSVLogger):
        file = callback.csv_file
        if file is not None and not file.closed:
            file.flush()


def _flush_all(summary_writers: Iterable[tf.summary.SummaryWriter]) -> None:
    for writer in summary_writers:
        writer.flush()


def _begin_csv(callback: Any, history: keras.callbacks.History, first_missing_epoch: int) -> None:
    """Continues a log with one row per epoch: drops epochs to come, and adds missing epochs."""
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


class RepeatedRecords:
    """Removes records from the files of other processes if this process writes them again.

    Args:
      directories: the directories of the event files. Records that this process has written there
        so far may stay twice.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = list(directories)
        self._mine_before = self._mine()
        self._others = {
            path: keys for path in self._files_of_others() if (keys := set(_keys_in(path)))
        }

    def take_out(self) -> None:
        """Removes the records that this process has written since from the other files."""
        mine = self._mine() - self._mine_before
        for path, keys in self._others.items():
            repeated = keys & mine
            if repeated:
                _rewrite_without(path, repeated)
                keys.difference_update(repeated)

    def _mine(self) -> set[Key]:
        paths = (p for d in self._directories for p in d.glob(_files_of(str(os.getpid()))))
        return {key for path in paths for key in _keys_in(path)}

    def _files_of_others(self) -> Iterator[Path]:
        for directory in self._directories:
            mine = set(directory.glob(_files_of(str(os.getpid()))))
            found = [p for p in directory.glob(_files_of("*")) if p not in mine]
            yield from sorted(found, key=lambda path: path.stat().st_mtime)[-NEWEST_FILES:]


def _files_of(pid: str) -> str:
    return f"events.out.tfevents.*.{pid}.*"


def _keys_in(path: Path) -> Iterator[Key]:
    for _, keys in _events(path):
        yield from keys


def _events(path: Path) -> Iterator[tuple[bytes, list[Key]]]:
    """Yields the whole records in a file. Its writer may have been killed in the middle of one."""
    try:
        for record in tf.compat.v1.io.tf_record_iterator(str(path)):
            event = tf.compat.v1.Event.FromString(record)
            yield record, [(value.tag, event.step) for value in event.summary.value]
    except (tf.errors.DataLossError, tf.errors.NotFoundError):
        return


def _rewrite_without(path: Path, repeated: set[Key]) -> None:
    def write(temporary: Path) -> None:
        with tf.io.TFRecordWriter(str(temporary)) as writer:
            for record, keys in _events(path):
                if not keys or not repeated.issuperset(keys):
                    writer.write(record)

    files.write_atomically(path, write)
