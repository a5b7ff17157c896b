"""Runs one local job: check, master, workers, and clearing away, in this order."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from hvd_elastic_keras import env, files, timeline
from hvd_elastic_keras.config import EVEN, JobConfig, JobSpec
from hvd_elastic_keras.console import Console, counted
from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.launchers.local import LocalLauncher
from hvd_elastic_keras.master.controller import Controller, JobResult
from hvd_elastic_keras.master.state import LOCALHOST
from hvd_elastic_keras.model_check import check_model, last_lines

LOOPBACK = "127.0.0.1"
EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
EXIT_SIGNAL_BASE = 128
CONNECT_TIMEOUT_S = 2.0
WANTED_JOB = "job.wanted.json"
"""Beside `job.json`: what is asked for, until it is accepted."""


@dataclasses.dataclass(frozen=True)
class JobRequest:
    """What the command line asked for: a model (`spec`) or a script with its arguments."""

    job: JobConfig
    spec: JobSpec | None
    script: list[str]
    job_dir: Path
    name: str
    timeline: Path | None = None
    """Where a trace of the whole job goes."""
    deterministic: bool = False
    balance: str = EVEN
    audit: bool = False
    skip_corrupt: bool = False

    @property
    def most_members(self) -> int:
        """How many of the workers of the start have something to compute, as far as is known."""
        training = self.spec.training if self.spec else None
        if training is None or training.batch_grows:
            return self.job.num_workers
        return min(self.job.num_workers, training.num_micro_batches)


async def run_job(request: JobRequest) -> int:
    """Runs a job to its end and returns the exit code of the command.

    Raises:
      ConfigurationError: something is wrong; no worker has been started.
    """
    console = Console()
    job_dir = request.job_dir
    is_new = not job_dir.exists()
    _prepare(job_dir)
    try:
        await _accept(request, console)
    except BaseException:
        if is_new:
            shutil.rmtree(job_dir, ignore_errors=True)
        raise
    console.line(f"job directory: {_shown(job_dir)}")
    controller = Controller(request.job, job_dir, console, _first_worker_number(job_dir))
    await controller.start(LOOPBACK)
    launcher = LocalLauncher(
        _command(request),
        job_dir / files.LOGS,
        lambda worker_id: env.WorkerEnvironment(
            master=controller.address,
            token=controller.token,
            worker_id=worker_id,
            job_dir=str(job_dir),
            interactive=console.interactive,
            launcher_pid=os.getpid(),
            hostname=LOCALHOST,
            timeline_dir=str(job_dir / files.TIMELINES) if request.timeline else "",
            deterministic=request.deterministic,
            balance=request.balance,
            audit=request.audit,
            skip_corrupt=request.skip_corrupt,
        ),
        console.worker_line,
        threads=_threads(request),
        keeps_threads=request.deterministic,
    )
    signals = _stop_on_signals(controller)
    training = dataclasses.asdict(request.spec.training) if request.spec else {}
    result = await controller.run(
        launcher, model=request.name, num_workers=request.job.num_workers, training=training
    )
    if request.timeline:
        _write_timeline(request.timeline, job_dir, console)
    return _conclude(console, request, result, signals)


def _prepare(job_dir: Path) -> None:
    try:
        (job_dir / files.LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"--job_dir={job_dir} cannot be used: {error.strerror}. Give a directory that can be "
            "written."
        ) from error
    try:
        endpoint = files.read_endpoint(job_dir)
    except ConfigurationError:
        return
    # Not by the process id: in a container the next launcher often gets the same one.
    if not _answers(endpoint.address):
        return
    raise ConfigurationError(
        f"A job is running in {job_dir} (process {endpoint.pid}). Use another --job_dir, or wait "
        "for its end."
    )


async def _accept(request: JobRequest, console: Console) -> None:
    """Checks what is to be done; only then does it take the place of what was done before."""
    job_dir = request.job_dir
    if request.timeline:
        _check_timeline(request.timeline)
    if request.spec:
        wanted = job_dir / WANTED_JOB
        try:
            request.spec.save(wanted)
            found = await check_model(wanted, console, skip_corrupt=request.skip_corrupt)
            _describe(console, request, found)
            counts = {
                "train": found["num_examples"],
                "validation": found["num_validation_examples"],
            }
            dataclasses.replace(request.spec, num_examples=counts).save(wanted)
            wanted.replace(job_dir / files.JOB)
        finally:
            wanted.unlink(missing_ok=True)
    if request.timeline:
        shutil.rmtree(job_dir / files.TIMELINES, ignore_errors=True)
        (job_dir / files.TIMELINES).mkdir()


def _check_timeline(target: Path) -> None:
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


def _write_timeline(target: Path, job_dir: Path, console: Console) -> None:
    """At the end of a job, whose results do not depend on it."""
    try:
        rounds = timeline.write_merged(job_dir, target)
    except OSError as error:
        console.line(f"warning: the timeline cannot be written to {_shown(target)}: {error}")
        return
    console.line(f"timeline of {counted(rounds, 'round')}: {_shown(target)}")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _first_worker_number(job_dir: Path) -> int:
    """Worker ids are not used again when a job is gone on with."""
    numbers = [p.stem[1:] for p in (job_dir / files.LOGS).glob("w*.log")]
    return max((int(n) + 1 for n in numbers if n.isdecimal()), default=0)


def _describe(console: Console, request: JobRequest, found: dict[str, Any]) -> None:
    spec = request.spec
    if spec is None:
        return
    training = spec.training
    workers = request.job.num_workers
    steps_per_epoch = found["steps_per_epoch"]
    if training.batch_grows:
        steps_per_epoch = -(-steps_per_epoch // workers)
    length = (
        counted(training.steps, "step")
        if training.steps is not None
        else f"{counted(training.epochs or 0, 'epoch')} of {counted(steps_per_epoch, 'step')}"
    )
    console.line(
        f"{request.name}: {found['parameters']:,} parameters, {found['num_examples']:,} examples "
        f"(+{found['num_validation_examples']:,} for validation), {length}"
    )
    cut = f"{training.num_micro_batches} micro-batches of {training.micro_batch_size}"
    batch = f"global batch {training.global_batch_size} = {cut}"
    if training.batch_grows:
        batch = f"batch {training.batch_size_per_worker} per worker = {cut}"
    spares = workers - request.most_members
    waiting = f", of which {spares} will wait as {'a spare' if spares == 1 else 'spares'}"
    console.line(f"{batch}; starting {counted(workers, 'worker')}{waiting if spares > 0 else ''}")


def _threads(request: JobRequest) -> int:
    """Threads of an operation: workers share the cores of this machine."""
    if request.deterministic:
        return env.DETERMINISTIC_THREADS
    return max(1, (os.cpu_count() or 1) // request.most_members)


def _command(request: JobRequest) -> list[str]:
    if request.spec:
        return [sys.executable, "-m", "hvd_elastic_keras.worker.main"]
    return [sys.executable, *request.script]


def _stop_on_signals(controller: Controller) -> list[int]:
    """SIGINT and SIGTERM stop the job; returns the list that the signals go into."""
    received: list[int] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        controller.stop("interrupted" if number == signal.SIGINT else f"got {number.name}")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return received


def _conclude(console: Console, request: JobRequest, result: JobResult, signals: list[int]) -> int:
    job_dir = _shown(request.job_dir)
    if result.refused:
        console.error(result.reason)
        return EXIT_FAILED if result.training > 1 or result.step else EXIT_CONFIGURATION
    several = result.training > 1
    if result.stopped:
        where = f" of training {result.training}" if several else ""
        console.line(f"stopped at step {result.step}{where}: {result.reason}")
        console.line(f"to go on, start it again with --job_dir={job_dir}")
        return EXIT_SIGNAL_BASE + signals[0] if signals else EXIT_FAILED
    if not result.succeeded:
        tail = _log_tail(request.job_dir, result.last_failed_worker)
        if tail:
            console.line(f"end of {job_dir}/{files.LOGS}/{result.last_failed_worker}.log:")
        for line in tail:
            console.worker_line(result.last_failed_worker, line)
        console.line(f"the job failed: {result.reason}")
        console.line(f"logs: {job_dir}/{files.LOGS}")
        return EXIT_FAILED
    steps = counted(result.step, "step")
    length = f"{result.training} trainings, the last of {steps}" if several else steps
    console.line(f"finished after {length}; results: {job_dir}")
    return 0


def _log_tail(job_dir: Path, worker_id: str) -> list[str]:
    """The last lines of a failed worker's log, where its error is."""
    try:
        return last_lines((job_dir / files.LOGS / f"{worker_id}.log").read_text(errors="replace"))
    except OSError:
        return []


def _shown(path: Path) -> str:
    """A path as short as it can be for people."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
