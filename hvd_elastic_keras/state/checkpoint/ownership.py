"""The owner of a directory of checkpoints.

If two jobs wrote to one directory, they would go on from each other's steps. So each worker of a
job claims the directory before it reads or writes there. On disk, all workers of the owner share
the lock of `owner.json` as long as they live. Where there are no locks (a bucket), the owner counts
as alive if its launcher is alive. Only the launcher's machine can tell that. If another job claims
the directory although the owner is alive, the owner notices it and writes no more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
from pathlib import Path

import msgspec

from hvd_elastic_keras.common import files, locks
from hvd_elastic_keras.common.errors import CheckpointNotWrittenError, ConfigurationError
from hvd_elastic_keras.settings import env, launched_by
from hvd_elastic_keras.state.checkpoint.places import Place

NAME = "owner.json"
TRIES = 5
"""Attempts to become the owner: others may hold the lock while they find out who the owner is."""
_held: dict[Path, int] = {}
"""Open descriptors of the lock files of this process, which keep the locks to its end."""


class Owner(msgspec.Struct, frozen=True):
    """A job that writes checkpoints.

    Attributes:
      job_id: random, see `files.JOB_ID`.
      job_dir: empty if a process trains alone.
    """

    job_id: str
    job_dir: str
    host: str

    @property
    def shown(self) -> str:
        """Description of the job for messages."""
        return f"the job of {self.job_dir or 'a process'} on {self.host}"


@functools.cache
def of_process() -> Owner | None:
    """Returns the job of this process; None if another process of `horovodrun` writes for it."""
    environment, launched = env.worker_environment(), launched_by.launched_place()
    if environment is None:
        alone = Owner(secrets.token_hex(16), "", socket.gethostname())
        return alone if launched is None or launched.rank == 0 else None
    job_dir = environment.job_dir
    return Owner(environment.job_id or job_dir, job_dir, socket.gethostname())


def claim(place: Place) -> Owner | None:
    """Claims a directory for the job of this process. Returns that job, see `of_process`.

    Does not claim a directory that cannot be written: the writing of a checkpoint reports that.

    Raises:
      ConfigurationError: another running job owns the directory.
    """
    if owner := of_process():
        with contextlib.suppress(OSError):
            if not place.is_dir():
                place.mkdir(parents=True)
            _claim(place, owner)
    return owner


def _claim(place: Place, owner: Owner) -> None:
    if isinstance(place, Path):
        with contextlib.suppress(locks.LocksUnknownError):
            _claim_by_lock(place / NAME, owner)
            return
    if (other := _other(place, owner)) and (why := _lives(other)):
        raise _refusal(place, other, why)
    if _read(place) != owner:
        (place / NAME).write_bytes(msgspec.json.encode(owner))


def check_still_owned(place: Place, owner: Owner | None) -> None:
    """Checks that no other job has claimed the directory. Call it before writing a checkpoint.

    Raises:
      CheckpointNotWrittenError: another job has claimed the directory.
    """
    if owner and (other := _other(place, owner)):
        raise CheckpointNotWrittenError(
            f"No checkpoint is written to {place} any more: {other.shown} has taken it over. Give "
            "each job a --checkpoint_dir of its own"
        )


def check_free(directory: Path, job_id: str) -> None:
    """Checks whether a job may claim a directory, without claiming it.

    Raises:
      ConfigurationError: another running job owns the directory.
    """
    path = directory / NAME
    if not path.exists() or (other := _read(directory)) is None or other.job_id == job_id:
        return
    with contextlib.suppress(OSError, locks.LocksUnknownError):
        try:
            os.close(locks.lock(path))
        except locks.LockHeldError as held:
            raise _refusal(directory, other, str(held)) from None


def _claim_by_lock(path: Path, owner: Owner) -> None:
    for _ in range(TRIES):
        if (descriptor := _as_owner(path, owner)) is None:
            descriptor = locks.lock(path, shared=True)
        found = _read(path.parent)
        if found and found.job_id == owner.job_id:
            before, _held[path] = _held.get(path), descriptor
            if before is not None:
                os.close(before)
            return
        who = locks.holders(path)
        os.close(descriptor)
    raise _refusal(path.parent, found, who)


def _as_owner(path: Path, owner: Owner) -> int | None:
    """Makes this job the owner and returns the lock; returns None if others hold the lock."""
    try:
        descriptor = locks.lock(path)
    except locks.LockHeldError:
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(owner), 0)
    locks.share(descriptor)
    return descriptor


def _other(place: Place, owner: Owner) -> Owner | None:
    found = _read(place)
    return found if found and found.job_id != owner.job_id else None


def _read(place: Place) -> Owner | None:
    try:
        return msgspec.json.decode((place / NAME).read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return None


def _lives(other: Owner) -> str:
    """Returns the known holders of another job's directory; empty if none are known."""
    job_dir = Path(other.job_dir)
    if other.host != socket.gethostname() or not other.job_dir:
        return ""
    with contextlib.suppress(OSError):
        if files.read_job_id(job_dir) == other.job_id:
            return locks.holders(job_dir / files.LOCK)
    return ""


def _refusal(place: Place, other: Owner | None, who: str) -> ConfigurationError:
    whose = other.shown if other else "another job"
    return ConfigurationError(
        f"The checkpoints in {place} are those of {whose}, which runs ({who}). Both jobs would "
        "write there, and go on from each other's steps. Give another --checkpoint_dir, or wait "
        "for the end of that job."
    )
