"""The reasons to refuse a job before its start, and `--dry_run`, which only checks a job.

`--dry_run` prints the plan of the job. It starts no worker and leaves no file.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hvd_elastic_keras.cli import plan, source_files
from hvd_elastic_keras.cli.check_in_subprocess import check_request
from hvd_elastic_keras.cli.checks.machine import gpus_here, too_little_memory_for
from hvd_elastic_keras.cli.job_directory import held
from hvd_elastic_keras.cli.job_request import JobRequest, MasterRequest
from hvd_elastic_keras.common import files, host_port, predictions
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers import open_files
from hvd_elastic_keras.master.http import certificate
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.state.checkpoint import ownership
from hvd_elastic_keras.worker import network

DONE = "nothing has been started: without --dry_run, this job starts"

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


async def dry_run(request: JobRequest, settings: Sequence[str] = ()) -> int:
    """Checks what can be checked, prints the plan, and returns the exit code.

    Args:
      settings: lines about values that differ from their defaults.

    Raises:
      ConfigurationError: the job would be refused, for this reason.
    """
    console = Console()
    request.check_workers_fit()
    check_directory(request.job_dir)
    check_gpus(request)
    check_checkpoint_dir(request)
    if request.output.timeline:
        check_timeline(request.output.timeline)
    check_address(request.master)
    if request.network_interface and not (request.hosts or request.pods):
        network.interface(request.network_interface, "", network.addresses())
    with tempfile.TemporaryDirectory(prefix=env.SCRATCH_PREFIX) as scratch:
        if request.master.tls:
            certificate.make(Path(scratch))
        found = None
        if request.spec:
            check_same_kind(request.job_dir, request.spec)
            wanted = Path(scratch, files.JOB)
            explains = request.options.explain_step
            request, found = await check_request(request, wanted, console, explains=explains)
            if request.spec and request.spec.output:
                predictions.check_directory(Path(request.spec.output), found["identity"])
        else:
            check_syntax(source_files.file_of(request.script, Path.cwd()))
    warnings = (*request.command.warnings, *too_little_memory_for(request.started_here))
    for line in (*warnings, *plan.whole_plan(request, found), *settings):
        console.line(line)
    open_files.raise_limit()
    if too_few := open_files.too_few_for(request.job.max_workers):
        console.line(too_few)
    console.line(DONE)
    return 0


def check_directory(job_dir: Path) -> None:
    """Refuses a directory that a job would refuse; leaves the directory as it was.

    Raises:
      ConfigurationError: a job is running there, or it cannot be written.
    """
    touched = [job_dir / files.LOCK, job_dir / files.LOGS, job_dir, *job_dir.parents]
    made = [path for path in touched if not path.exists()]
    try:
        with held(job_dir):
            if job_dir / files.LOCK in made:
                (job_dir / files.LOCK).unlink(missing_ok=True)
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # the path is gone, or somebody else uses it by now
                path.rmdir()


def check_address(master: MasterRequest) -> None:
    """Raises `ConfigurationError` if the master could not listen at its address now."""
    try:
        host_port.listening(master.bind, 0).close()
    except OSError as error:
        raise cannot_listen(master.bind, error) from error
    if master.port:
        try:
            host_port.listening(master.bind, master.port).close()
        except OSError as error:
            raise port_is_taken(master.port) from error


def check_syntax(script: Path) -> None:
    """Raises `ConfigurationError` if Python cannot read a script."""
    try:
        ast.parse(script.read_bytes(), str(script))
    except (SyntaxError, ValueError, OSError) as error:
        raise ConfigurationError(f"The script {script} cannot be run: {error}.") from error


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
        job_id = files.read_job_id(request.job_dir) if identity.exists() else ""
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
