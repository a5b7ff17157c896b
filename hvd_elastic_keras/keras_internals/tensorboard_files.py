"""Event files of TensorBoard that several workers have written, one after the other.

A worker that takes over from a killed rank 0 cannot know whether rank 0 had written the last
records. So it writes them again. Records that exist twice are then removed from the old file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import tensorflow as tf

from hvd_elastic_keras.common import files

NEWEST_FILES = 2
"""This many files of other processes in each directory may end with records that come again."""
Key = tuple[str, int]
"""Tag and step of a record."""


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
