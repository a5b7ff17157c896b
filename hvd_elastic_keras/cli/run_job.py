"""Runs one job from this launcher: check, master, workers, and clean-up, in this order."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from hvd_elastic_keras.cli import conclusion, curves, plan, source_files
from hvd_elastic_keras.cli.check_in_subprocess import check_request
from hvd_elastic_keras.cli.checks.machine import too_little_memory_for
from hvd_elastic_keras.cli.conclusion import EXIT_FAILED, conclude
from hvd_elastic_keras.cli.dry_run import (
    cannot_listen,
    check_checkpoint_dir,
    check_gpus,
    check_same_kind,
    check_timeline,
    port_is_taken,
    refused_on_full_disk,
)
from hvd_elastic_keras.cli.job_directory import first_worker_number, held, shown, until_removed
from hvd_elastic_keras.cli.job_request import JobRequest, MasterRequest
from hvd_elastic_keras.cli.remote_workers import run_on_hosts
from hvd_elastic_keras.cli.take_over import left_behind
from hvd_elastic_keras.common import control, files, host_port, predictions, versions
from hvd_elastic_keras.common.control import JobDescription
from hvd_elastic_keras.launchers import open_files
from hvd_elastic_keras.launchers.base import LOCALHOST, WorkerStart
from hvd_elastic_keras.launchers.fork_server import ForkServer
from hvd_elastic_keras.launchers.kubernetes import KUBERNETES
from hvd_elastic_keras.launchers.local import LocalLauncher
from hvd_elastic_keras.master.controller import Controller
from hvd_elastic_keras.master.http import certificate
from hvd_elastic_keras.master.journal import Term
from hvd_elastic_keras.master.shown_output import Audience
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.job_course import JobCourse
from hvd_elastic_keras.observe.live_console import console_for
from hvd_elastic_keras.observe.pages import Pages
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobSeed
from hvd_elastic_keras.settings.job_spec import JobSpec, save_script, seed_of_script
from hvd_elastic_keras.state.checkpoint import directories
from hvd_elastic_keras.worker import network

UNPROTECTED = (
    "warning: the job's token travels over the network in the clear, and who reads it can join and "
    "stop the job. Use --tls, unless you trust the network."
)
WANTED_JOB = "job.wanted.json"
"""File beside `job.json` that holds the requested job until it is accepted."""


async def run_job(request: JobRequest) -> int:
    """Runs a job to its end and returns the exit code of the command.

    Raises:
      ConfigurationError: something is wrong; no worker has been started.
    """
    request.check_workers_fit()
    # Python tests the temporary directory with a file, only once. A launcher killed during the test
    # would leave that file behind, so the test comes first.
    tempfile.gettempdir()
    conclusion.end_on_sigterm()
    console = console_for(request.output.verbosity, request.spec.job if request.spec else "")
    with console.drawing(), held(request.job_dir) as begin:
        conclusion.outlive_terminal(request.job_dir, console)
        for warning in request.command.warnings:
            console.line(warning)
        known = newest_term_of_checkpoints(request.job_dir)
        term = Term(request.job_dir, request.command.words, console, known, request.command.sources)
        endpoint = left_behind(request, term, console)
        with contextlib.ExitStack() as stack:
            server = _fork_server(request, stack)
            if endpoint is None:
                for warning in too_little_memory_for(request.started_here):
                    console.line(warning)
                with refused_on_full_disk(request.job_dir):
                    request = await _accept(request, console, server)
                if server and server.variables != _server_variables(request):
                    server.close()  # the check has shown that workers have more threads
                    server = _fork_server(request, stack)
            if request.script:
                with refused_on_full_disk(request.job_dir):
                    request = _with_seed(request)
            begin()
            return await _run_accepted(request, console, term, endpoint, server)


def _fork_server(request: JobRequest, stack: contextlib.ExitStack) -> ForkServer | None:
    """Starts a fork server for the workers of a model on this host. It ends with the stack."""
    if request.script or request.pods or not request.workers_here:
        return None
    return stack.enter_context(contextlib.closing(ForkServer(_server_variables(request))))


def _server_variables(request: JobRequest) -> dict[str, str]:
    # In a list of processes, a forked worker has the environment of the server: it names the job.
    return {**request.worker_variables, env.JOB_DIR: str(request.job_dir)}


async def _run_accepted(
    request: JobRequest,
    console: Console,
    term: Term,
    endpoint: control.Endpoint | None,
    server: ForkServer | None,
) -> int:
    job_dir = request.job_dir
    console.info(f"job directory: {shown(job_dir)}")
    file_limits = open_files.raise_limit()
    if too_few := open_files.too_few_for(request.job.max_workers):
        console.line(too_few)
    with refused_on_full_disk(job_dir):
        controller = _controller(request, console, term, endpoint, server)
        if request.master.tls and endpoint is None:
            certificate.make(job_dir)
        fingerprint = certificate.fingerprint_in(job_dir) if request.master.tls else ""
        await _listen(controller, request.master, endpoint, fingerprint)
    _tell_how_to_reach(request, controller, console)
    launcher = LocalLauncher(
        lambda _: request.worker_command,
        job_dir / files.LOGS,
        job_dir / files.WORKERS,
        lambda worker_id: _worker_environment(request, controller, fingerprint, worker_id),
        controller.on_output,
        variables=request.worker_variables,
        file_limits=file_limits,
        fork_server=server,
        warn=console.line,
    )
    signals = conclusion.stop_on_signals(controller)
    removed = asyncio.create_task(_end_if_removed(job_dir, console, controller))
    try:
        settings = _training_settings(request)
        result = await run_on_hosts(controller, launcher, request, console, settings)
    finally:
        removed.cancel()
    _remove_unfinished_checkpoints(job_dir)
    conclusion.write_up(request, console)
    return conclude(console, request, result, signals)


def _controller(
    request: JobRequest,
    console: Console,
    term: Term,
    endpoint: control.Endpoint | None,
    server: ForkServer | None,
) -> Controller:
    job_dir = request.job_dir
    curves_for = curves.asked_for if request.options.tensorboard else curves.beside_users
    course = JobCourse.of(job_dir)
    return Controller(
        request.job,
        job_dir,
        console,
        term,
        token=endpoint.token if endpoint else request.master.token,
        description=_description(request),
        start=WorkerStart(
            KUBERNETES if request.pods else LOCALHOST,
            first_worker_number(job_dir),
            server.ready if server else None,
        ),
        audience=Audience(
            [course.hear, console.hear, curves_for(job_dir, console)],
            [lambda core: Pages(course, core.status, job_dir / files.LOGS)],
            all_output=request.output.all_output,
        ),
    )


def _tell_how_to_reach(request: JobRequest, controller: Controller, console: Console) -> None:
    """Shows the addresses that people need, and a warning if others can read what passes there."""
    if not (request.master.tls or host_port.is_loopback(request.master.bind)):
        console.line(UNPROTECTED)
    if request.output.dashboard:
        console.info(f"dashboard: {files.read_endpoint(request.job_dir).dashboard}")
    if request.job.awaits_joiners and not request.hosts:
        console.info(how_to_join(controller.address, request.job_dir))


def _worker_environment(
    request: JobRequest, controller: Controller, fingerprint: str, worker_id: str
) -> env.WorkerEnvironment:
    """Returns the settings of a worker on this host."""
    job_dir = request.job_dir
    return env.WorkerEnvironment(
        master=controller.address,
        token=controller.token,
        fingerprint=fingerprint,
        worker_id=worker_id,
        job_dir=str(job_dir),
        iface=request.network_interface,
        hostname=LOCALHOST,
        slot=controller.state.workers[worker_id].slot,
        master_timeout_s=request.job.master_timeout_s,
        timeline_dir=str(job_dir / files.TIMELINES) if request.output.timeline else "",
        options=request.asked,
        job_id=files.read_job_id(job_dir),
    )


def _training_settings(request: JobRequest) -> dict[str, Any]:
    """Returns the settings of a model's training, for the job's records; empty for a script."""
    if not request.spec:
        return {}
    training = dataclasses.asdict(request.spec.training)
    training |= msgspec.structs.asdict(request.options)
    return {**training, "micro_batch_size": request.micro_batch_size}


async def _end_if_removed(job_dir: Path, console: Console, controller: Controller) -> None:
    """Ends the job at once when its directory is gone, because no result could be kept."""
    await until_removed(job_dir)
    console.line(
        f"{job_dir} was removed while the job ran, with its checkpoints, logs and events: the job "
        "ends"
    )
    controller.kill_workers()
    console.end()
    # A clean-up could damage another job, which may run there by now.
    os._exit(EXIT_FAILED)


async def _listen(
    controller: Controller,
    wanted: MasterRequest,
    before: control.Endpoint | None,
    fingerprint: str,
) -> None:
    """Listens at the requested port, which must be free; else at the earlier launcher's port."""
    port = wanted.port or (before.port if before else 0)
    try:
        given_out = wanted.given_out or _given_out(wanted.bind)
        await controller.start(wanted.bind, port, fingerprint, given_out)
    except OSError as error:
        raise cannot_listen(wanted.bind, error) from error
    if wanted.port and not controller.address.endswith(f":{wanted.port}"):
        raise port_is_taken(wanted.port)


def _given_out(bind: str) -> str:
    """Returns the address by which workers reach a master that listens at `bind`."""
    if bind not in (host_port.ANY_IPV4, host_port.ANY_IPV6):
        return bind
    return network.own_address()


def how_to_join(address: str, job_dir: Path) -> str:
    """Says how workers of other hosts join a job."""
    return (
        f"workers of other hosts join with: python -m hvd_elastic_keras.run --join={address} "
        f"--token_file=FILE, with a copy of {shown(job_dir / files.MASTER)}"
    )


def _description(request: JobRequest) -> JobDescription:
    """Returns all that joiners have to know about the job."""
    identity = request.job_dir / files.JOB_ID
    if not identity.exists():
        files.write_secret(identity, f"{secrets.token_hex(16)}\n".encode())
    job = request.job_dir / files.JOB
    model, here = request.spec.model if request.spec else "", Path.cwd()
    return JobDescription(
        name=request.name,
        job_dir=str(request.job_dir),
        job_id=files.read_job_id(request.job_dir),
        directory=str(here),
        script=tuple(request.script),
        job=job.read_text() if request.spec else "",
        sources=source_files.source_digests(request.script, model, here),
        versions=versions.installed(),
        options=request.asked.encode(),
        master_timeout_s=request.job.master_timeout_s,
    )


async def _accept(request: JobRequest, console: Console, server: ForkServer | None) -> JobRequest:
    """Checks the requested job; after that, it replaces the earlier job of the directory.

    Returns:
      The request with the micro-batch size that the check has found.
    """
    job_dir = request.job_dir
    check_gpus(request)
    check_checkpoint_dir(request)
    if request.output.timeline:
        check_timeline(request.output.timeline)
    spec = request.spec
    if spec:
        check_same_kind(job_dir, spec)
        wanted = job_dir / WANTED_JOB
        try:
            request, found = await check_request(request, wanted, console, server)
            for line in plan.lines_at_start(request, found):
                console.info(line)
            if spec.output:
                predictions.begin(Path(spec.output), found["identity"])
            dataclasses.replace(spec, num_examples=_counts(spec, found)).save(wanted)
            wanted.replace(job_dir / files.JOB)
        finally:
            wanted.unlink(missing_ok=True)
    if request.output.timeline:
        shutil.rmtree(job_dir / files.TIMELINES, ignore_errors=True)
        (job_dir / files.TIMELINES).mkdir()
    return request


def _with_seed(request: JobRequest) -> JobRequest:
    """Returns the request of a script with the seed of the job, which `job.json` keeps."""
    path = request.job_dir / files.JOB
    number = request.seed if request.seed is not None else seed_of_script(path)
    if number is None:
        number = secrets.randbelow(2**31)
    save_script(path, request.script, number)
    seed = JobSeed(number, is_drawn=request.seed is None)
    return dataclasses.replace(request, asked=dataclasses.replace(request.asked, seed=seed))


def _counts(spec: JobSpec, found: plan.Description) -> dict[str, int]:
    """Returns the number of examples by split, so that workers need not count them."""
    if not spec.trains:
        return {spec.split: found["num_examples"]}
    return {"train": found["num_examples"], "validation": found["num_validation_examples"]}


def _remove_unfinished_checkpoints(job_dir: Path) -> None:
    """Removes unfinished checkpoints of killed workers, when no worker writes any more."""
    for directory in directories.of_job(job_dir):
        directories.remove_unfinished(directory)


def newest_term_of_checkpoints(job_dir: Path) -> int:
    """Returns the newest term of all checkpoints; a writer with an earlier term is refused."""
    found = map(directories.terms_in, directories.of_job(job_dir))
    return max(map(directories.newest, found))
