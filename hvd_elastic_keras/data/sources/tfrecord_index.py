"""An index of the records in a TFRecord file. It is built once and kept next to the file.

The format of a record (tensorflow/core/lib/io/record_writer.h), little-endian:

    uint64 length | uint32 masked CRC32C of length | data[length] | uint32 masked CRC32C of data
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.observe.notices import progress
from hvd_elastic_keras.settings import env

log = logging.getLogger(__name__)
VERSION = 1
HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
OVERHEAD = HEADER.size + CHECKSUM.size
"""Bytes of a record besides its data."""
GZIP = b"\x1f\x8b"
CHECKSUM_WRONG = "its checksum does not fit"
LENGTH_WRONG = "the checksum of its length does not fit, so that the rest of the file is unreadable"
TRUNCATED = "the file ends in the middle of it"
_UNUSABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
"""Errors from reading a kept index that is missing or damaged."""


@dataclasses.dataclass(frozen=True)
class Corruption:
    """A record that cannot be read: the byte at which it begins, and what is wrong."""

    offset: int
    what: str


@dataclasses.dataclass(frozen=True, eq=False)
class FileIndex:
    """The records of one file.

    Attributes:
      size, modified_ns: size and modification time of the file when it was read.
      offsets: shape [records], int64; where each good record begins.
      lengths: shape [records], int64; lengths of the data of the good records.
      corrupt: the records that cannot be read.
    """

    size: int
    modified_ns: int
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    corrupt: tuple[Corruption, ...]


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum of TFRecord files: a CRC32C, rotated, plus a constant."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def index_of(path: Path) -> FileIndex:
    """Returns the index of a file: the kept one if the file has not changed, else a new one.

    Several processes may call this at the same time, because an index is written with one rename.

    Raises:
      DataError: the file is compressed, or cannot be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    for place in (beside(path), in_cache(path)):
        found = _load(place, status)
        if found is not None:
            return found
    index = build(path)
    _keep(path, index)
    return index


def beside(path: Path) -> Path:
    """Returns where an index is kept if that place is writable.

    Patterns such as *.tfrecord* do not match its hidden name.
    """
    return path.with_name(f".{path.name}.index.npz")


def in_cache(path: Path) -> Path:
    """Returns where an index is kept if the place next to the file is not writable."""
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    return env.cache_dir() / "tfrecord" / f"{name}.index.npz"


def build(path: Path) -> FileIndex:
    """Reads a whole file, verifies both checksums of every record, and returns its index.

    Raises:
      DataError: the file is compressed.
    """
    with path.open("rb", buffering=2**20) as file:
        status = os.fstat(file.fileno())
        _refuse_compressed(file, path)
        offsets: list[int] = []
        lengths: list[int] = []
        corrupt: list[Corruption] = []
        with progress(f"indexing {path.name}", status.st_size, "B", scale=True) as bar:
            for offset, length, wrong in _records(file, status.st_size):
                if wrong:
                    corrupt.append(Corruption(offset, wrong))
                else:
                    offsets.append(offset)
                    lengths.append(length)
                bar.update(length + OVERHEAD)
    return FileIndex(
        status.st_size,
        status.st_mtime_ns,
        np.array(offsets, np.int64),
        np.array(lengths, np.int64),
        tuple(corrupt),
    )


def _refuse_compressed(file: BinaryIO, path: Path) -> None:
    start = file.read(HEADER.size)
    file.seek(0)
    plain = len(start) == HEADER.size and masked_crc32c(start[:8]) == HEADER.unpack(start)[1]
    if start.startswith(GZIP) and not plain:
        raise DataError(
            f"{path} is compressed with GZIP, so that records cannot be read from the middle. "
            f"Write it without compression, or use tf.data.TFRecordDataset(..., "
            'compression_type="GZIP"), which is read from the front after a restart.'
        )


def _records(file: BinaryIO, size: int) -> Iterator[tuple[int, int, str]]:
    """Yields each record's offset, length of data, and what is wrong with it ("" if good)."""
    offset = 0
    while offset < size:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            yield offset, len(header), TRUNCATED
            return
        length, checksum = HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum:
            yield offset, size - offset - OVERHEAD, LENGTH_WRONG
            return
        if offset + OVERHEAD + length > size:
            yield offset, size - offset - OVERHEAD, TRUNCATED
            return
        body = file.read(length + CHECKSUM.size)
        data, stored = body[:length], body[length:]
        good = CHECKSUM.pack(masked_crc32c(data)) == stored
        yield offset, length, "" if good else CHECKSUM_WRONG
        offset += OVERHEAD + length


def _load(place: Path, status: os.stat_result) -> FileIndex | None:
    """Returns the index in `place` if it belongs to the present state of the file."""
    try:
        with np.load(place, allow_pickle=False) as content:
            version, size, modified_ns = (int(v) for v in content["key"])
            if (version, size, modified_ns) != (VERSION, status.st_size, status.st_mtime_ns):
                return None
            pairs = zip(content["corrupt_offsets"], content["corrupt_reasons"], strict=True)
            corrupt = tuple(Corruption(int(offset), str(what)) for offset, what in pairs)
            return FileIndex(size, modified_ns, content["offsets"], content["lengths"], corrupt)
    except _UNUSABLE:
        return None


def _keep(path: Path, index: FileIndex) -> None:
    for place in (beside(path), in_cache(path)):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(place, lambda temporary: _save(temporary, index))
            return
        except OSError as error:
            log.info("the index of %s cannot be kept in %s: %s", path, place, error)
    log.warning("the index of %s is kept nowhere; it will be built again", path)


def _save(path: Path, index: FileIndex) -> None:
    arrays: dict[str, Any] = {
        "key": np.array([VERSION, index.size, index.modified_ns], np.int64),
        "offsets": index.offsets,
        "lengths": index.lengths,
        "corrupt_offsets": np.array([c.offset for c in index.corrupt], np.int64),
        "corrupt_reasons": np.array([c.what for c in index.corrupt], np.str_),
    }
    with path.open("wb") as file:
        np.savez(file, **arrays)
