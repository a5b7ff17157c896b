"""The directory of a job, which belongs to one launcher at a time."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError

log = logging.getLogger(__name__)
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


def of_name(name: str) -> Path:
    """Where a job goes that nobody has said a directory for: a new one, below `jobs`."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("jobs", f"{name}-{stamp}-{os.getpid()}").resolve()


@contextlib.contextmanager
def held(job_dir: Path) -> Iterator[Callable[[], None]]:
    """Keeps other launchers out of a job directory, until this one ends in whatever way.

    Gives a function to call once the job begins: what has been made before it is removed if the
    job is refused. The lock is the operating system's: it ends with the process that holds it.

    Raises:
      ConfigurationError: another launcher has the directory, or it cannot be written.
    """
    is_new = not job_dir.exists()
    try:
        (job_dir / files.LOGS).mkdir(parents=True, exist_ok=True)
        lock = locked(job_dir)
    except Timeout:
        raise ConfigurationError(
            f"A job is running in {job_dir}{_process(job_dir)}. Use another --job_dir, or wait for "
            "its end."
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"--job_dir={job_dir} cannot be used: {error.strerror}. Give a directory that can be "
            "written."
        ) from error
    began = False

    def begin() -> None:
        nonlocal began
        began = True

    try:
        yield begin
    finally:
        if is_new and not began:
            shutil.rmtree(job_dir, ignore_errors=True)
        lock.release()


def locked(job_dir: Path) -> BaseFileLock:
    """Takes the lock of a directory, where the file system has any.

    Raises:
      Timeout: another process has it.
      OSError: the directory cannot be written.
    """
    # A marker file in place of a lock would outlive a launcher that is killed.
    lock = FileLock(job_dir / files.LOCK, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise
        log.warning("%s cannot be locked: start one launcher at a time", lock.lock_file)
    return lock


def _process(job_dir: Path) -> str:
    """Which process holds the directory, as far as it has said so."""
    try:
        return f" (process {files.read_endpoint(job_dir).pid})"
    except ElasticError:
        return ""
