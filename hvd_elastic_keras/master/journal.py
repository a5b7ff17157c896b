"""The master's journal: its decisions, so that a restarted master can go on from them.

Each line is one complete set of `Decisions` with its sequence number, the term of its master and a
checksum. It is on disk before anything that follows from it is published. If a killed master has
left an incomplete last line, that line is ignored. Observations (steps, heartbeats, waiting
workers) are not kept: the workers tell them again.
"""

from __future__ import annotations

import contextlib
import os
import types
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hvd_elastic_keras.common import files, messages
from hvd_elastic_keras.common.messages import Message, ProtocolError
from hvd_elastic_keras.master.machine.decisions import Decisions
from hvd_elastic_keras.observe.console import Console

LEAST_ENTRY_BYTES = 200
COMPACT_BYTES = 2**20
"""A longer journal is replaced by its next line alone."""
NO_SOURCES: Mapping[str, str] = types.MappingProxyType({})


class Entry(Message, frozen=True, kw_only=True):
    """One line of the journal.

    Attributes:
      term: the term of the master; it grows with each master of the job directory.
      command: the arguments of the launcher.
      directory: the directory in which the launcher was started.
      sources: for each flag, where its value in `command` came from.
      job_dir: the directory of the journal. A journal found in another directory is a copy.
    """

    sequence: int
    term: int
    command: tuple[str, ...]
    directory: str
    decisions: Decisions
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    job_dir: str = ""


class Journal:
    """The journal of a job directory; one master writes it at a time.

    Attributes:
      last: the newest complete entry; None if there is none.
      is_broken: whether the last write failed. The journal is removed then, since its decisions
        would be out of date. It begins anew as soon as there is room.
      problem: why there is no entry, in words that follow "the journal"; empty if there is one.
      most_lost: how many entries after `last`, at most, cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.is_broken = False
        self.last, self._end, damaged_bytes = _last_entry(path)
        self.most_lost = -(-damaged_bytes // LEAST_ENTRY_BYTES)
        self.problem = "" if self.last else _problem(path)

    def write(
        self,
        term: int,
        command: tuple[str, ...],
        decisions: Decisions,
        sources: Mapping[str, str] = NO_SOURCES,
    ) -> None:
        """Adds an entry, if the decisions differ from the last ones.

        Raises:
          OSError: the journal cannot be written; see `is_broken`.
        """
        last = self.last
        is_known = last and last.term == term and last.decisions.equal(decisions)
        if is_known and not self.is_broken:
            return
        entry = Entry(
            sequence=last.sequence + 1 if last else 1,
            term=term,
            command=command,
            # The directory at the start of the term: it may have been removed meanwhile.
            directory=last.directory if last and last.term == term else str(Path.cwd()),
            decisions=decisions,
            sources=dict(sources),
            job_dir=str(self._path.parent.resolve()),
        )
        try:
            self._append(_line(entry))
        except OSError:
            self.is_broken = True
            self._remove()
            raise
        self.last, self.is_broken = entry, False

    def repeat(self, entry: Entry, term: int) -> None:
        """Adds an earlier entry again, as one of this term.

        Raises:
          OSError: the journal cannot be written.
        """
        sequence = self.last.sequence + 1 if self.last else 1
        again = msgspec.structs.replace(entry, sequence=sequence, term=term)
        self._append(_line(again))
        self.last = again

    def close(self) -> None:
        """Closes the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # everything that counts was synced before
                os.close(file)

    def _remove(self) -> None:
        self.close()
        for path in (self._path, self._new):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    @property
    def _new(self) -> Path:
        return self._path.with_name(f"{self._path.name}.new")

    def _append(self, line: bytes) -> None:
        if self._file is None or self._end > COMPACT_BYTES:
            self._begin_anew(line)
            return
        # A write that was cut short leaves nothing behind that could be taken for an entry.
        _write_all(self._file, line, self._end)
        os.fdatasync(self._file)
        self._end += len(line)

    def _begin_anew(self, line: bytes) -> None:
        """Replaces the journal by this line alone, by one rename.

        A journal that has been read is never written to.
        """
        self.close()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        file = os.open(self._new, flags, 0o600)
        try:
            _write_all(file, line)
            os.fsync(file)
            self._new.replace(self._path)
            _sync_directory(self._path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                os.close(file)
            raise
        self._file = file
        self._end = len(line)


def _write_all(file: int, data: bytes, position: int = 0) -> None:
    """Writes all data. If the disk gets full, a part is written, and the rest raises an error."""
    while data:
        count = os.pwrite(file, data, position)
        data, position = data[count:], position + count


def _line(entry: Entry) -> bytes:
    body = messages.encode(entry)
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _last_entry(path: Path) -> tuple[Entry | None, int, int]:
    """Returns the newest complete entry, where it ends, and how many bytes follow it."""
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
    with contextlib.suppress(ProtocolError):
        return messages.decode(body, Entry) if (body := _whole(line)) else None
    return None


def _whole(line: bytes) -> bytes:
    """Returns the content of a line if its checksum is right, else nothing."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    return body if line.endswith(b"\n") and checksum == b"%08x" % zlib.crc32(body) else b""


def _problem(path: Path) -> str:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if any(map(_whole, lines)):
        return "cannot be read: another release of this package has written it"
    return "is damaged" if lines else "is empty"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Term:
    """One master's time at a job directory.

    Args:
      known: the newest term that the checkpoints of the directory name. They may have been copied
        there.
      sources: for each flag, where its value in `command` came from.

    Attributes:
      number: the number of the term; it grows with each master of the directory.
      before: the decisions of the previous master, if its job has not ended; None otherwise, and
        after `begin_anew`.
      left: the same decisions; `begin_anew` keeps them here.
      journal_problem: see `Journal.problem`.
      original: the directory from which this one was copied; empty if it is no copy.
      trouble: why the last write to the journal failed; empty if it succeeded.
      most_lost: see `Journal.most_lost`.
    """

    def __init__(
        self,
        job_dir: Path,
        command: tuple[str, ...],
        console: Console,
        known: int = 0,
        sources: Mapping[str, str] = NO_SOURCES,
    ) -> None:
        self._journal = Journal(job_dir / files.JOURNAL)
        self.journal_problem = self._journal.problem
        self._command = command
        self._sources = sources
        self._console = console
        self.trouble = ""
        self._last = last = self._journal.last
        self.number = 1 + max(known, last.term if last else 0)
        self.before: Decisions | None = None
        self.command_before = last.command if last else ()
        self.sources_before = last.sources if last else {}
        if last and not last.decisions.state.ended:
            self.before = last.decisions
        self.left = self.before
        is_copy = last and files.is_copy(job_dir, last.job_dir)
        self.original = last.job_dir if last and is_copy else ""
        self.most_lost = self._journal.most_lost

    def begin_anew(self) -> None:
        """Begins a new job: only files are left of the previous master's job."""
        self.before = None

    def keep(self, decisions: Decisions) -> None:
        """Writes decisions to the journal. Nothing that follows from them may be published before.

        If the last write failed, for example because the disk was full, this one begins a new
        journal. Its first entry holds all decisions.
        """
        try:
            self._journal.write(self.number, self._command, decisions, self._sources)
        except OSError as error:
            known, self.trouble = self.trouble, _told(error)
            if not known:
                self._console.line(f"warning: {self.trouble}.")
        else:
            if self.trouble:
                self.trouble = ""
                self._console.line(
                    "the journal is written again: if this launcher is killed, its workers can be "
                    "taken over"
                )

    def give_back(self) -> None:
        """Leaves the earlier master's command and decisions to the next one, if there was any.

        A command that is refused before it has trained is not the one that `--resume` means.
        """
        if self._last is not None:
            with contextlib.suppress(OSError):  # then the refused command is left
                self._journal.repeat(self._last, self.number)

    def close(self) -> None:
        """Closes the journal."""
        self._journal.close()


def _told(error: OSError) -> str:
    return (
        f"the journal cannot be written ({error.strerror}). If this launcher is killed before it "
        "can, its workers cannot be taken over: the job goes on from its newest checkpoint"
    )
