"""`--dry_run`: checks a job and prints its plan. Starts no worker and leaves no file."""

from __future__ import annotations

import ast
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hvd_elastic_keras.cli import plan
from hvd_elastic_keras.cli.check_in_subprocess import check_request
from hvd_elastic_keras.cli.job_directory import held
from hvd_elastic_keras.cli.job_request import JobRequest, MasterAddress
from hvd_elastic_keras.cli.refusals import (
    cannot_listen,
    check_checkpoint_dir,
    check_gpus,
    check_same_kind,
    check_timeline,
    port_is_taken,
)
from hvd_elastic_keras.common import env, files, host_port, predictions
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers import open_files
from hvd_elastic_keras.master.http import certificate
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.worker import network

DONE = "nothing has been started: without --dry_run, this job starts"


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
    if request.timeline:
        check_timeline(request.timeline)
    check_address(request.address)
    if request.network_interface and not (request.hosts or request.pods):
        network.interface(request.network_interface, "", network.addresses())
    with tempfile.TemporaryDirectory(prefix=env.SCRATCH_PREFIX) as scratch:
        if request.tls:
            certificate.make(Path(scratch))
        found = None
        if request.spec:
            check_same_kind(request.job_dir, request.spec)
            request, found = await check_request(request, Path(scratch, files.JOB), console)
            if request.spec and request.spec.output:
                predictions.check_directory(Path(request.spec.output), found["identity"])
        else:
            check_syntax(Path(request.script[0]))
    for line in (*request.warnings, *plan.whole_plan(request, found), *settings):
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


def check_address(address: MasterAddress) -> None:
    """Raises `ConfigurationError` if the master could not listen at the address now."""
    try:
        host_port.listening(address.bind, 0).close()
    except OSError as error:
        raise cannot_listen(address.bind, error) from error
    if address.port:
        try:
            host_port.listening(address.bind, address.port).close()
        except OSError as error:
            raise port_is_taken(address.port) from error


def check_syntax(script: Path) -> None:
    """Raises `ConfigurationError` if Python cannot read a script."""
    try:
        ast.parse(script.read_bytes(), str(script))
    except (SyntaxError, ValueError, OSError) as error:
        raise ConfigurationError(f"The script {script} cannot be run: {error}.") from error
