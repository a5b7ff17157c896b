"""The directory of a job, which belongs to one launcher at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hvd_elastic_keras.common import files, locks
from hvd_elastic_keras.common.errors import ConfigurationError

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.25
FUNCTION_WORKER = "function_worker.py"
"""The script of jobs of `run_function`."""
JOBS = "jobs"
"""Name of the directory, in the present one, of jobs without --job_dir."""


def of_name(name: str) -> Path:
    """Returns a new directory below `jobs`, for a job without --job_dir."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path(JOBS, f"{name}-{stamp}-{os.getpid()}").resolve()


def all_jobs() -> list[Path]:
    """Returns the directories of jobs below `jobs`, the one that was written to last first."""
    found = (path.parent for path in Path(JOBS).glob(f"*/{files.EVENTS}"))
    return sorted(found, key=written_at, reverse=True)


def written_at(job_dir: Path) -> float:
    """Returns the time at which a job has last written its events; 0 if it has none."""
    try:
        return (job_dir / files.EVENTS).stat().st_mtime
    except OSError:
        return 0.0


def newest() -> Path | None:
    """Returns the directory below `jobs` to which a job has written last; None if there is none."""
    return next(iter(all_jobs()), None)


def to_continue(job_dir: Path) -> str:
    """Returns, in words, how a job is continued."""
    if _is_of_a_function(job_dir):
        return f"to continue: call run_function again, with job_dir={shown(job_dir)!r}"
    command = f"python -m hvd_elastic_keras.run --resume --job_dir={shlex.quote(shown(job_dir))}"
    return f"to continue: {command}"


def _is_of_a_function(job_dir: Path) -> bool:
    job = files.read_json(job_dir / files.JOB) or {}
    return any(word.endswith(FUNCTION_WORKER) for word in job.get("script", ())[:1])


def is_of(path: Path, job_id: str) -> bool:
    """Whether a path is the directory of this job."""
    try:
        return files.read_job_id(path) == job_id
    except OSError:
        return False


def shown(path: Path) -> str:
    """Returns the shortest form of a path, for people."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@contextlib.contextmanager
def held(job_dir: Path) -> Iterator[Callable[[], None]]:
    """Keeps other launchers out of a job directory until this launcher ends, in whatever way.

    Yields a function to call once the job begins. If the job is refused before that call, a
    directory made here is removed again. The lock is the operating system's: it ends with the
    process that holds it.

    Raises:
      ConfigurationError: another launcher has locked the directory, or it cannot be written.
    """
    is_new = not job_dir.exists()
    try:
        (job_dir / files.LOGS).mkdir(parents=True, exist_ok=True)
        lock = locked(job_dir)
    except locks.LockHeldError as held_by:
        raise ConfigurationError(
            f"A job is running in {job_dir}: {held_by} has locked its {files.LOCK}. Use another "
            "--job_dir, or wait for its end. If this is not the launcher of a job, end it, or "
            f"remove {files.LOCK}."
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
        if lock is not None:
            os.close(lock)


def locked(job_dir: Path) -> int | None:
    """Locks a directory; returns an open descriptor, or None if the file system has no locks.

    A marker file instead of a lock would outlive a launcher that is killed.

    Raises:
      LockHeldError: another process has locked it.
      OSError: the directory cannot be written.
    """
    try:
        return locks.lock(job_dir / files.LOCK)
    except locks.LocksUnknownError as error:
        log.warning("%s: start one launcher at a time", error)
        return None


async def until_removed(job_dir: Path) -> None:
    """Waits until somebody removes or replaces the directory of a running job."""
    events = job_dir / files.EVENTS  # this file exists from the start of a job to its end
    first = events.stat()
    is_same = True
    while is_same:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            is_same = os.path.samestat(events.stat(), first)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:  # a network file system may not answer for a while
            log.debug("%s: %s", events, error)


def first_worker_number(job_dir: Path) -> int:
    """Returns the first number for new workers; a job that continues does not reuse worker ids."""
    numbers = [p.stem[1:] for p in (job_dir / files.LOGS).glob("w*.log")]
    return max((int(n) + 1 for n in numbers if n.isdecimal()), default=0)
