"""A source with random access for TFRecord files."""

from __future__ import annotations

import dataclasses
import glob
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.common.events import RecordsSkipped
from hvd_elastic_keras.data.sources import tfrecord_index
from hvd_elastic_keras.data.sources.tfrecord_index import (
    CHECKSUM,
    CHECKSUM_WRONG,
    HEADER,
    LENGTH_WRONG,
    OVERHEAD,
    masked_crc32c,
)
from hvd_elastic_keras.observe.notices import counted_places, notices
from hvd_elastic_keras.settings import env

Array = npt.NDArray[np.int64]
log = logging.getLogger(__name__)
MOST_OPEN_FILES = 64
MOST_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class FilePart:
    """Records [skip, skip + take) of a file; all records from `skip` on if `take` is None."""

    path: Path
    skip: int = 0
    take: int | None = None


class TFRecordSource:
    """The records of uncompressed TFRecord files. An example is the bytes of one record.

    The first use reads all files once, checks them, and keeps an index of each file. The index is a
    hidden file next to the data file, or a file in ~/.cache/hvd_elastic_keras if that place is not
    writable. It is made again when the size or the modification time of the data file changes.
    Checksums are verified again at every reading.

    Args:
      files: paths, or a pattern such as `data/train-*`. Examples have the order of the files; files
        that match a pattern are sorted by name.
      skip_corrupt: whether to leave out corrupt records, with a warning; else they are an error.
        None: as in a file of flags or the environment, else not. `--skip_corrupt` on the command
        line always takes precedence.
      block_size: see `Source`; for storage on which random access is slow.

    Raises:
      DataError: there is no such file, or it is compressed or corrupt.

    Example:

        def dataset(split):
            features = {"x": tf.io.FixedLenFeature([8], tf.float32),
                        "y": tf.io.FixedLenFeature([], tf.int64)}

            def parse(record):
                example = tf.io.parse_single_example(record, features)
                return example["x"], example["y"]

            return TFRecordSource(f"data/{split}-*.tfrecord"), parse
    """

    element_spec = tf.TensorSpec([], tf.string)

    def __init__(
        self,
        files: str | Path | FilePart | Iterable[str | Path | FilePart],
        *,
        skip_corrupt: bool | None = None,
        block_size: int | None = None,
    ) -> None:
        self.block_size = block_size
        self._parts = _parts_of(files)
        self._paths = [part.path for part in self._parts]
        asked = {} if skip_corrupt is None else {"skip_corrupt": skip_corrupt}
        # A file has one index, even if several parts of it are read.
        indexes = {path: tfrecord_index.index_of(path) for path in dict.fromkeys(self._paths)}
        if not env.run_options(asked).skip_corrupt:
            _refuse_corrupt(indexes)
        slices = [_records_of(part, indexes[part.path]) for part in self._parts]
        _tell_left_out(self._parts, indexes, [s.left_out for s in slices])
        self._offsets = np.concatenate([s.offsets for s in slices])
        self._lengths = np.concatenate([s.lengths for s in slices])
        self._ends = np.cumsum([len(s.offsets) for s in slices])
        self._files = _OpenFiles(self._paths)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> bytes:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        """Returns the bytes of several records.

        Raises:
          DataError: a record has changed since the index was made.
        """
        numbers = np.asarray(indices, np.int64)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IndexError(f"A record of {list(indices)} is not in [0, {len(self)}).")
        places = zip(
            np.searchsorted(self._ends, numbers, side="right").tolist(),
            self._offsets[numbers].tolist(),
            self._lengths[numbers].tolist(),
            strict=True,
        )
        return [self._read(file, offset, length) for file, offset, length in places]

    def _read(self, file: int, offset: int, length: int) -> bytes:
        record = self._files.read(file, offset, length + OVERHEAD)
        data = record[HEADER.size : -CHECKSUM.size]
        if len(record) == length + OVERHEAD and CHECKSUM.pack(masked_crc32c(data)) == record[-4:]:
            return data
        path = self._paths[file]
        raise DataError(
            f"{path} is corrupt: the record at byte {offset:,} was good when the file was indexed, "
            f"and now {CHECKSUM_WRONG}. Restore the file from its source. To find all that is "
            f"wrong with it, remove {tfrecord_index.beside(path)} (or "
            f"{tfrecord_index.in_cache(path)}) and start again, with --skip_corrupt to go on "
            "without corrupt records."
        )


class _OpenFiles:
    """Reads from files by their number, and keeps some of them open."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()

    def read(self, file: int, offset: int, size: int) -> bytes:
        with self._lock:  # no other thread closes the file during the read
            descriptor = self._open.get(file)
            if descriptor is None:
                descriptor = self._opened(file)
            return os.pread(descriptor, size, offset)

    def _opened(self, file: int) -> int:
        while len(self._open) >= MOST_OPEN_FILES:
            os.close(self._open.pop(next(iter(self._open))))
        descriptor = os.open(self._paths[file], os.O_RDONLY | os.O_CLOEXEC)
        self._open[file] = descriptor
        return descriptor

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)


def _parts_of(given: str | Path | FilePart | Iterable[str | Path | FilePart]) -> list[FilePart]:
    if isinstance(given, str | Path):
        matching = sorted(glob.glob(str(given)))
        given = matching if matching else [given]
    elif isinstance(given, FilePart):
        given = [given]
    parts = [p if isinstance(p, FilePart) else FilePart(Path(p)) for p in given]
    if not parts:
        raise DataError("TFRecordSource was given no files. Give at least one path.")
    for part in parts:
        if "://" in str(part.path) or ":/" in str(part.path):
            raise DataError(
                f"{part.path} is not a local file, expected paths on this machine. Mount or copy "
                "it, or write a Source of your own that reads from there."
            )
    return parts


def _refuse_corrupt(indexes: dict[Path, tfrecord_index.FileIndex]) -> None:
    found = [(path, corrupt) for path, index in indexes.items() for corrupt in index.corrupt]
    if not found:
        return
    path, corrupt = found[0]
    more = f" ({len(found) - 1:,} more are corrupt.)" if len(found) > 1 else ""
    raise DataError(
        f"{path} is corrupt: the record at byte {corrupt.offset:,} cannot be read, because "
        f"{corrupt.what}.{more} Restore the file from its source, or leave such records out "
        "with --skip_corrupt (TFRecordSource(..., skip_corrupt=True))."
    )


def _tell_left_out(
    parts: Sequence[FilePart], indexes: dict[Path, tfrecord_index.FileIndex], left_out: list[int]
) -> None:
    """Warns of records that are left out, if there are any.

    Args:
      left_out: number of left-out records of each part. If the number after a damaged length is
        unknown, they count as one.
    """
    count = sum(left_out)
    if not count:
        return
    lacking = [part for part, number in zip(parts, left_out, strict=True) if number]
    paths = dict.fromkeys(part.path for part in lacking)
    found = [(path, corrupt) for path in paths for corrupt in indexes[path].corrupt]
    places = [f"{path} at byte {c.offset:,} ({c.what})" for path, c in found]
    for place in places:
        log.warning("left out a corrupt record: %s", place)
    unbounded = {part.path for part in lacking if part.take is None}
    unknown = any(path in unbounded and c.what == LENGTH_WRONG for path, c in found)
    records = "record is" if count == 1 else "records are"
    notices.tell(
        f"warning: {'at least ' if unknown else ''}{count:,} corrupt {records} left out: "
        f"{counted_places(places, MOST_SHOWN)}",
        RecordsSkipped(
            count=count,
            records=[{"path": str(path), "offset": c.offset, "why": c.what} for path, c in found],
        ),
    )


class _Slice(NamedTuple):
    """The offsets and lengths of the good records of a part, and the number of other records."""

    offsets: Array
    lengths: Array
    left_out: int


def _records_of(part: FilePart, index: tfrecord_index.FileIndex) -> _Slice:
    """Returns the good records of a part.

    Parts also count corrupt records, as far as these are known. The other records of a part then
    stay the same.
    """
    stop = None if part.take is None else part.skip + part.take
    if not index.corrupt:
        if stop is not None and len(index.offsets) < stop:
            raise DataError(
                f"{part.path} has {len(index.offsets):,} records, expected at least {stop:,}. It "
                "is not the file that it is said to be: prepare the data again."
            )
        return _Slice(index.offsets[part.skip : stop], index.lengths[part.skip : stop], 0)
    corrupt = np.array([c.offset for c in index.corrupt], np.int64)
    wanted = np.sort(np.concatenate([index.offsets, corrupt]))[part.skip : stop]
    good = np.isin(index.offsets, wanted)
    # After a damaged length, there may be more records than the index knows.
    count = len(wanted) if part.take is None else part.take
    return _Slice(index.offsets[good], index.lengths[good], count - int(good.sum()))
