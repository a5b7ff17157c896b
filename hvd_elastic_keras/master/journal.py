"""The master's journal: what it has decided, so that a master that is started anew goes on from it.

Each line is one whole set of `Decisions` with its sequence number, the term of its master and a
checksum, on disk before anything that follows from it is published. What a killed master has left
of its last line is cut off. Observations (steps, heartbeats, who waits) are not kept: the workers
tell them again.
"""

from __future__ import annotations

import contextlib
import os
import types
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hvd_elastic_keras.common import messages
from hvd_elastic_keras.common.messages import Message, ProtocolError
from hvd_elastic_keras.master.machine.decisions import Decisions

LEAST_ENTRY_BYTES = 200
COMPACT_BYTES = 2**20
"""A longer journal is replaced by its last line."""
NO_SOURCES: Mapping[str, str] = types.MappingProxyType({})


class Entry(Message, frozen=True, kw_only=True):
    """One line of the journal.

    Attributes:
      term: grows with each master of the job directory.
      command: the arguments of the launcher, and the directory it was started in.
      sources: by flag, where its value in `command` came from.
    """

    sequence: int
    term: int
    command: tuple[str, ...]
    directory: str
    decisions: Decisions
    sources: dict[str, str] = msgspec.field(default_factory=dict)


class Journal:
    """The journal of a job directory; one master writes it at a time.

    Attributes:
      last: the newest entry that is whole; None if there is none.
      most_lost: entries that there may have been after it, and that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._is_broken = False
        self.last, self._end, damaged_bytes = _last_entry(path)
        self.most_lost = -(-damaged_bytes // LEAST_ENTRY_BYTES)

    def write(
        self,
        term: int,
        command: tuple[str, ...],
        decisions: Decisions,
        sources: Mapping[str, str] = NO_SOURCES,
    ) -> None:
        """Adds an entry, if the decisions are others than the last ones.

        Raises:
          OSError: it cannot be written, now for the first time. The journal is gone then, since it
            says what is not true any more.
        """
        last = self.last
        if self._is_broken or (last and last.term == term and last.decisions.equal(decisions)):
            return
        entry = Entry(
            sequence=last.sequence + 1 if last else 1,
            term=term,
            command=command,
            directory=str(Path.cwd()),
            decisions=decisions,
            sources=dict(sources),
        )
        try:
            self._append(_line(entry))
        except OSError:
            self._is_broken = True
            self.close()
            self._path.unlink(missing_ok=True)
            raise
        self.last = entry

    def begin_again(self) -> None:
        """In a new file, if the one until now was removed.

        Raises:
          OSError: it cannot be made.
        """
        if self.last and not self._is_broken:
            self._begin_anew(_line(self.last))

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None or self._end > COMPACT_BYTES:
            self._begin_anew(line)
            return
        # After a write that was cut short there is nothing that could be taken for an entry.
        os.pwrite(self._file, line, self._end)
        os.fdatasync(self._file)
        self._end += len(line)

    def _begin_anew(self, line: bytes) -> None:
        """With this line alone, by one rename; a journal that has been read is never written to."""
        self.close()
        new = self._path.with_name(f"{self._path.name}.new")
        self._file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, line, 0)
        os.fsync(self._file)
        new.replace(self._path)
        _sync_directory(self._path.parent)
        self._end = len(line)


def _line(entry: Entry) -> bytes:
    body = messages.encode(entry)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _last_entry(path: Path) -> tuple[Entry | None, int, int]:
    """The newest entry that is whole, where it ends, and how many bytes follow."""
    try:
        data = path.read_bytes()
    except OSError:
        return None, 0, 0
    found, end, newest = None, 0, 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        if entry := _entry(line):
            found, newest = entry, end
    return found, newest, len(data) - newest


def _entry(line: bytes) -> Entry | None:
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    with contextlib.suppress(ProtocolError):
        return messages.decode(body, Entry)
    return None


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
