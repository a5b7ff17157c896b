"""The owner of a directory of checkpoints: two jobs would go on from each other's steps.

Each worker of a job claims the directory before it reads or writes there. On disk, all workers of
the owner share the lock of `owner.json` as long as they live. Where there are no locks (a bucket),
the owner is taken to live if its launcher does, which only that one's machine can tell. An owner
that lives all the same finds that another job has claimed the directory, and writes no more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
from pathlib import Path

import msgspec

from hvd_elastic_keras.common import env, files, locks
from hvd_elastic_keras.common.errors import CheckpointNotWrittenError, ConfigurationError
from hvd_elastic_keras.state.checkpoint.places import Place

NAME = "owner.json"
TRIES = 5
"""To become the owner: others may look meanwhile who that is."""
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
        """For people."""
        return f"the job of {self.job_dir or 'a process'} on {self.host}"


@functools.cache
def of_process() -> Owner | None:
    """The job of this process; None if `horovodrun` has started another one that writes."""
    environment, launched = env.worker_environment(), env.launched_place()
    if environment is None:
        alone = Owner(secrets.token_hex(16), "", socket.gethostname())
        return alone if launched is None or launched.rank == 0 else None
    job_dir = environment.job_dir
    return Owner(environment.job_id or job_dir, job_dir, socket.gethostname())


def claim(place: Place) -> Owner | None:
    """Makes a directory that of this process's job; returns that job, None if another one writes.

    Does nothing where nothing can be written: that is told when a checkpoint is.

    Raises:
      ConfigurationError: another job that runs has it.
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
    """To be called before a checkpoint is written.

    Raises:
      CheckpointNotWrittenError: another job has claimed the directory.
    """
    if owner and (other := _other(place, owner)):
        raise CheckpointNotWrittenError(
            f"No checkpoint is written to {place} any more: {other.shown} has taken it over. Give "
            "each job a --checkpoint_dir of its own"
        )


def check_free(directory: Path, job_id: str) -> None:
    """Looks whether a job may claim a directory, without doing so.

    Raises:
      ConfigurationError: another job that runs has it.
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
    """The lock, after this job was made the owner; None if others have the lock."""
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
    """Who is known to hold the job directory of another job; empty if nobody is."""
    job_dir = Path(other.job_dir)
    if other.host != socket.gethostname() or not other.job_dir:
        return ""
    with contextlib.suppress(OSError):
        if (job_dir / files.JOB_ID).read_text().strip() == other.job_id:
            return locks.holders(job_dir / files.LOCK)
    return ""


def _refusal(place: Place, other: Owner | None, who: str) -> ConfigurationError:
    whose = other.shown if other else "another job"
    return ConfigurationError(
        f"The checkpoints in {place} are those of {whose}, which runs ({who}). Both jobs would "
        "write there, and go on from each other's steps. Give another --checkpoint_dir, or wait "
        "for the end of that job."
    )
