"""Lists the files of a checkpoint with sizes and checksums, so that reading finds damage.

The manifest is written last. Its first line is JSON, its second one the checksum of the first.
Checksums are CRC-32C (RFC 3720, section 12.1): they find damage by disks and copies.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import google_crc32c
import msgspec

from hvd_elastic_keras.common import files
from hvd_elastic_keras.state.checkpoint.places import Place

NAME = "manifest.json"
BLOCK = 1 << 20


class FileSum(msgspec.Struct, frozen=True):
    """Size in bytes and CRC-32C of a file."""

    bytes: int
    crc32c: int


class Manifest(msgspec.Struct, frozen=True):
    """The files of a checkpoint by name, without the manifest.

    Attributes:
      term: how often the job had been started when the checkpoint was written.
    """

    version: int
    files: dict[str, FileSum]
    term: int = 0


def write(directory: Place, version: int, term: int = 0) -> None:
    """Adds the manifest to a directory; on return all of it has reached the disk."""
    files = {path.name: _sum_of(path) for path in directory.iterdir()}
    line = msgspec.json.encode(Manifest(version, files, term))
    path = directory / NAME
    path.write_bytes(b"%s\n%08x\n" % (line, google_crc32c.value(line)))
    for name in (*files, NAME):
        sync(directory / name)
    sync(directory)


def sync(path: Place) -> None:
    """Returns when a file, or the names in a directory, have reached the disk."""
    if not isinstance(path, Path):
        return  # a remote file is written when it is closed
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(directory: Place) -> Manifest:
    """Reads the manifest of a checkpoint.

    Raises:
      OSError: the manifest cannot be read.
      ValueError: the manifest is damaged.
    """
    line, _, rest = (directory / NAME).read_bytes().partition(b"\n")
    if rest != b"%08x\n" % google_crc32c.value(line):
        raise ValueError(f"{NAME} does not have its checksum")
    with files.only_value_errors():
        return msgspec.json.decode(line, type=Manifest)


def read_file(directory: Place, manifest: Manifest, name: str) -> bytes:
    """Reads a file, and checks that it is as it was written.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file is damaged, or not in the manifest.
    """
    content = (directory / name).read_bytes()
    _compare(name, FileSum(len(content), google_crc32c.value(content)), manifest)
    return content


def check_others(directory: Place, manifest: Manifest, known: Collection[str]) -> None:
    """Reads all files but the known ones, and checks that they are as they were written.

    Raises:
      OSError: a file cannot be read.
      ValueError: a file is damaged.
    """
    for name in manifest.files.keys() - set(known):
        _compare(name, _sum_of(directory / name), manifest)


def _compare(name: str, found: FileSum, manifest: Manifest) -> None:
    expected = manifest.files.get(name)
    if expected is None:
        raise ValueError(f"{name} is not in the manifest")
    if found.bytes != expected.bytes:
        raise ValueError(f"{name} has {found.bytes:,} bytes, expected {expected.bytes:,}")
    if found != expected:
        raise ValueError(f"{name} does not have its checksum")


def _sum_of(path: Place) -> FileSum:
    checksum, size = google_crc32c.Checksum(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            checksum.update(block)
            size += len(block)
    return FileSum(size, int.from_bytes(checksum.digest(), "big"))
