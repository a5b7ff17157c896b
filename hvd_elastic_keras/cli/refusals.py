"""The reasons to refuse a job before its start; the same for a job and for `--dry_run`."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hvd_elastic_keras.cli.checks.gpus import gpus_here
from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.common import env, files
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.job_spec import JobSpec
from hvd_elastic_keras.state.checkpoint import ownership
from hvd_elastic_keras.worker import network

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cannot_listen(bind: str, error: OSError) -> ConfigurationError:
    """Returns the error for an address at which the master cannot listen."""
    return ConfigurationError(
        f"--bind={bind} was given, at which this host cannot listen: {error.strerror}. "
        f"Use one of its addresses: {network.shown(network.addresses())}."
    )


def port_is_taken(port: int) -> ConfigurationError:
    """Returns the error for a requested port that is not free."""
    return ConfigurationError(
        f"--port={port} was given, but another program uses it. Choose another one."
    )


@contextlib.contextmanager
def refused_on_full_disk(job_dir: Path) -> Iterator[None]:
    """Refuses a job that finds no room on the disk while the block runs, before the job begins.

    Raises:
      ConfigurationError: there is no room.
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


def check_gpus(request: JobRequest) -> None:
    """Raises `ConfigurationError` if this host has too few GPUs for the workers that start here."""
    each, here = request.options.gpus_per_worker, request.started_here
    present = gpus_here()
    if not each or present is None or present >= each * here:
        return
    visible = env.variables_named([env.VISIBLE_GPUS]).get(env.VISIBLE_GPUS)
    of_those = "" if visible is None else f" ({env.VISIBLE_GPUS}={visible})"
    raise ConfigurationError(
        f"--gpus_per_worker={each} was given, so that the {here} workers of this host need "
        f"{each * here} GPUs, but it has {present}{of_those}. Start fewer workers, or leave the "
        "flag out: then they train on what they find."
    )


def check_checkpoint_dir(request: JobRequest) -> None:
    """Raises `ConfigurationError` if another running job writes its checkpoints there."""
    directory, identity = request.options.checkpoint_dir, request.job_dir / files.JOB_ID
    if directory and "://" not in directory:
        job_id = identity.read_text().strip() if identity.exists() else ""
        ownership.check_free(Path(directory), job_id)


def check_timeline(target: Path) -> None:
    """Raises `ConfigurationError` unless the trace can be written there when the job ends."""
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
    """Raises `ConfigurationError` if the directory belongs to a job of another kind."""
    try:
        before = JobSpec.load(job_dir / files.JOB)
    except ConfigurationError:
        return  # there is no readable job in the directory; this job takes its place
    if before.job != wanted.job:
        raise ConfigurationError(
            f"--job={wanted.job} was given with --job_dir={job_dir}, which is the directory of a "
            f"job that was started with --job={before.job}. Give another --job_dir."
        )
