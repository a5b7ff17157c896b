"""What refuses a job before its start, alike in a job and in `--dry_run`."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.job_spec import JobSpec
from hvd_elastic_keras.worker import network

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cannot_listen(bind: str, error: OSError) -> ConfigurationError:
    """The master cannot listen at this address."""
    return ConfigurationError(
        f"--bind={bind} was given, at which this host cannot listen: {error.strerror}. "
        f"Use one of its addresses: {network.shown(network.addresses())}."
    )


def port_is_taken(port: int) -> ConfigurationError:
    """The port that was asked for is not free."""
    return ConfigurationError(
        f"--port={port} was given, but another program uses it. Choose another one."
    )


@contextlib.contextmanager
def refused_on_full_disk(job_dir: Path) -> Iterator[None]:
    """Inside, nothing has begun yet for which room is needed.

    Raises:
      ConfigurationError: there is none.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ConfigurationError(
            f"{error.filename or job_dir} cannot be written: {error.strerror}. Make room there, or "
            "give another --job_dir."
        ) from error


def check_timeline(target: Path) -> None:
    """Raises `ConfigurationError` unless the trace can be put there when the job ends."""
    try:
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "It is no file")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"--timeline={target} cannot be written: {error.strerror}. Give a file in a directory "
            "that exists and can be written."
        ) from error


def check_same_kind(job_dir: Path, wanted: JobSpec) -> None:
    """Raises `ConfigurationError` if a directory is that of a job of another kind."""
    try:
        before = JobSpec.load(job_dir / files.JOB)
    except ConfigurationError:
        return  # there is none, or what there is gives way to this one
    if before.job != wanted.job:
        raise ConfigurationError(
            f"--job={wanted.job} was given with --job_dir={job_dir}, which is the directory of a "
            f"job that was started with --job={before.job}. Give another --job_dir."
        )
