"""File locks, which end with the process that holds them, and the holders of a lock.

Only its owner may read a lock file, because whoever may read a file may lock it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
from pathlib import Path

import psutil

from hvd_elastic_keras.common.errors import ElasticError

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
TABLE = Path("/proc/locks")
TRIES = 100
"""Attempts to lock a file that others remove and make again."""
MOST_SHOWN = 3
COMMAND_LENGTH = 100


class LockHeldError(ElasticError):
    """Others hold the lock. The text names them, as far as they are known."""


class LocksUnknownError(ElasticError):
    """The file system does not support locks."""


def lock(path: Path, *, shared: bool = False) -> int:
    """Takes the lock of a file, which is created if missing. Returns its open descriptor.

    The lock ends when the descriptor is closed, at the latest with this process.

    Args:
      shared: whether to share the lock with all others that want to share it. The function then
        waits for a process that holds the lock alone.

    Raises:
      LockHeldError: another process holds the lock.
      LocksUnknownError: the file system does not support locks.
      OSError: the file cannot be opened.
    """
    for _ in range(TRIES):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _take(descriptor, path, shared)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(descriptor, path):
            with contextlib.suppress(OSError):  # another user's file, or a disk without modes
                os.fchmod(descriptor, 0o600)  # earlier releases let everybody read it
            return descriptor
        os.close(descriptor)  # it was removed meanwhile, and nobody else would find this lock
    raise LockHeldError("others remove the file again and again")


def share(descriptor: int) -> None:
    """Lets others share a lock of this process. For a moment, another one may hold it alone."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def _take(descriptor: int, path: Path, shared: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LockHeldError(holders(path) or "another process") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise LocksUnknownError(f"{path} cannot be locked: {error.strerror}") from error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def holders(path: Path) -> str:
    """Names the processes of this machine that hold a file's lock; empty if none is known.

    The text is for people: "process 4711 (alice: python train.py)".
    """
    try:
        found = path.stat()
        table = TABLE.read_text()
    except OSError:
        return ""
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    entries = _entries(table, found.st_ino)
    # Some file systems show another device number there. Then the inode number must suffice.
    pids = [pid for pid, its in entries if its == device] or [pid for pid, _ in entries]
    return ", ".join(map(_shown, sorted(set(pids))[:MOST_SHOWN]))


def _entries(table: str, inode: int) -> list[tuple[int, str]]:
    """Returns processes that hold locks of files with this inode number, and the files' devices.

    >>> _entries("1: FLOCK  ADVISORY  WRITE 4711 fe:00:123 0 EOF", 123)
    [(4711, 'fe:00')]
    """
    found = []
    for line in table.splitlines():
        words = line.split()
        if len(words) < 6 or words[1] == "->":  # a process that waits for a lock
            continue
        device, _, number = words[5].rpartition(":")
        if number == str(inode):
            found.append((int(words[4]), device))
    return found


def _shown(pid: int) -> str:
    if pid <= 0:
        return "a process that cannot be seen from here"
    try:
        process = psutil.Process(pid)
        user, command = process.username(), shlex.join(process.cmdline()) or process.name()
        command = " ".join(command.split())
    except psutil.Error:
        return f"process {pid}"
    end = " …" if len(command) > COMMAND_LENGTH else ""
    return f"process {pid} ({user}: {command[:COMMAND_LENGTH]}{end})"
