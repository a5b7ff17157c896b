"""The commands of `ctl` that work without a master: `list`, `logs`, `env`, `manifests`, `stop`.

`ctl stop` asks the master. If a killed launcher has left workers behind, it asks these. `ctl env`
leaves out values that may be secret: tokens, keys and passwords, and the arguments of a script.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hvd_elastic_keras.cli import control_job, job_directory
from hvd_elastic_keras.cli.checks import machine
from hvd_elastic_keras.cli.flags.arguments import split_arguments
from hvd_elastic_keras.common import events, files, locks, versions
from hvd_elastic_keras.common.errors import (
    ConfigurationError,
    ElasticError,
    MasterUnreachableError,
)
from hvd_elastic_keras.launchers.kept_workers import WorkerRecord, kept_workers
from hvd_elastic_keras.launchers.kubernetes_pod import check_job_name
from hvd_elastic_keras.launchers.open_files import until_ended
from hvd_elastic_keras.master.journal import Journal
from hvd_elastic_keras.observe import job_history
from hvd_elastic_keras.observe.console import counted, table
from hvd_elastic_keras.settings import env

LOOK_EVERY_S = 0.25
ANSWER_S = 2.0
"""Seconds within which a launcher has to answer to be shown in the list."""
MOST_ASKED = 16
"""Launchers that are asked at the same time."""


def show_jobs() -> int:
    """Prints a line for each job below `./jobs`, the one that has written last first."""
    jobs = job_directory.all_jobs()
    if not jobs:
        print("There are no jobs in ./jobs.")
        return 0
    head = ("JOB", "STATE", "STEP", "WORKERS", "LAST WRITTEN")
    with ThreadPoolExecutor(MOST_ASKED) as at_once:  # a launcher that is silent takes its time
        print(table([head, *at_once.map(_row, jobs)]))
    return 0


def _row(job_dir: Path) -> tuple[str, ...]:
    written = time.localtime(job_directory.written_at(job_dir))
    when = time.strftime("%Y-%m-%d %H:%M:%S", written)
    if end := job_history.end_of(job_dir):
        return job_dir.name, end.status, str(end.step), "-", when
    try:
        status = control_job.read_status(job_dir, ANSWER_S)
    except ElasticError:  # its launcher was killed, or it is the job of somebody else
        return job_dir.name, "no answer", "-", "-", when
    return job_dir.name, status.phase, str(status.step), str(len(status.workers)), when


def show_logs(job_dir: Path, worker_id: str, *, follow: bool) -> int:
    """Prints the logs of one worker, or of all with the worker before each line.

    Args:
      follow: whether to go on until the job has ended.

    Raises:
      ConfigurationError: there is no such log.
    """
    logs = Logs(job_dir, worker_id)
    if not logs.paths():
        known = [path.stem for path in Logs(job_dir, "").paths()]
        expected = f"one of {', '.join(known)}" if known else "a job whose workers have started"
        what = f"The worker {worker_id!r}" if worker_id else f"The job {job_dir}"
        raise ConfigurationError(
            f"{what} has no log in {job_dir / files.LOGS}, expected {expected}."
        )
    while True:
        # Asked before the last look, which thus misses nothing.
        runs = follow and job_history.end_of(job_dir) is None
        for line in logs.new_lines(ended=not runs):
            print(line, flush=follow)
        if not runs:
            return 0
        time.sleep(LOOK_EVERY_S)


class Logs:
    """The logs of a job's workers, which may still grow.

    Args:
      worker_id: the only worker to read; empty for all.
    """

    def __init__(self, job_dir: Path, worker_id: str) -> None:
        self._directory = job_dir / files.LOGS
        self._worker_id = worker_id
        self._read: dict[Path, int] = {}

    def paths(self) -> list[Path]:
        """Returns the logs that there are, in the order of the workers."""
        found = (p for p in self._directory.glob("w*.log") if p.stem[1:].isdecimal())
        wanted = (p for p in found if self._worker_id in ("", p.stem))
        return sorted(wanted, key=lambda path: int(path.stem[1:]))

    def new_lines(self, *, ended: bool) -> Iterator[str]:
        """Yields the lines that have been written since the last call.

        Args:
          ended: whether nothing more will be written: the last line may lack its end.
        """
        for path in self.paths():
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not (line.endswith(b"\n") or ended):
                        break
                    self._read[path] = file.tell()
                    text = line.decode(errors="replace").rstrip("\n")
                    yield text if self._worker_id else f"{path.stem}| {text}"


PREFIXES = (
    *("CUDA_", "GLOO_", "HOROVOD_", "HVD_", "KERAS_", "NCCL_", "OMP_", "PYTHON", "TF_", "XLA_"),
)
"""Beginnings of the names of environment variables that matter."""
MAY_BE_SECRET = ("AUTH", "CREDENTIAL", "KEY", "PASS", "SECRET", "TOKEN")


def show_environment(job_dir: Path | None) -> int:
    """Prints the report.

    Args:
      job_dir: the directory of the job that is meant, if any. The flags of `run` must be defined.
    """
    of_job = _of_job(job_dir) if job_dir else []
    rows = [*_of_host(), *_of_variables(), *of_job]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    return 0


def _of_host() -> Iterator[tuple[str, str]]:
    installed = versions.installed()
    for name in (versions.PACKAGE, *versions.COMPARED):
        yield name, installed.get(name, "not installed")
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    gpus = machine.gpus_here()
    yield "processors", str(machine.processors())
    yield "free memory", machine.size(machine.available_bytes())
    yield "GPUs", "unknown: only TensorFlow can tell" if gpus is None else str(gpus)


def _of_variables() -> Iterator[tuple[str, str]]:
    found = {n: v for prefix in PREFIXES for n, v in env.variables_beginning(prefix).items()}
    for name, value in sorted(found.items()):
        is_secret = any(word in name.upper() for word in MAY_BE_SECRET)
        yield name, "(set)" if is_secret else value or "(empty)"


def _of_job(job_dir: Path) -> Iterator[tuple[str, str]]:
    yield "job", str(job_dir)
    history = job_history.read(job_dir)
    started = next((t.entry for t in history if isinstance(t.entry, events.JobStarted)), None)
    if started is not None:
        yield "trains", f"{started.model}, from {started.num_workers} workers on"
    last = Journal(job_dir / files.JOURNAL).last
    if last is not None:
        flags, script = split_arguments(last.command)
        yield "flags", " ".join(word for _, _, words in flags for word in words) or "none"
        yield "script", next((word for word in script if word != "--"), "none")
    rounds = sum(isinstance(t.entry, events.RoundRunning) for t in history)
    end = history[-1].entry if history else None
    how = "has not ended"
    if isinstance(end, events.JobFinished):
        how = control_job.how_it_ended(end.status, end.step, end.training, end.reason)
    yield "course", f"{counted(rounds, 'round')}; {how}"


STOP_LIMIT_S = 120.0
"""Longest wait for workers that were asked to leave: a step may be long."""


def stop(job_dir: Path) -> int:
    """Stops a job after the current step.

    If its launcher was killed, its workers wait for another one, and train on meanwhile. Those on
    this host are asked to leave.

    Returns:
      1 if a worker has not left in time, or none is left on this host.
    """
    try:
        return control_job.stop(job_dir)
    except MasterUnreachableError:
        try:
            lock = job_directory.locked(job_dir)
        except (locks.LockHeldError, OSError):
            lock = None
        if lock is None:
            raise  # the launcher may live
        try:
            left = kept_workers(job_dir / files.WORKERS)
            left = {i: w for i, w in left.items() if w.belongs_to(job_dir / files.WORKERS)}
            return _end_without_launcher(job_dir, left)
        finally:
            os.close(lock)


def _end_without_launcher(job_dir: Path, left: dict[str, WorkerRecord]) -> int:
    if not left:
        print(
            "the launcher of this job is gone, and no worker of it is left on this host. Workers "
            "on other hosts leave when they have waited for --master_timeout_s"
        )
        return 1
    names = f"{counted(len(left), 'worker')} ({', '.join(sorted(left))})"
    print(f"the launcher of this job is gone; {names} on this host leave after the current step")
    for worker in left.values():
        worker.ask_to_leave()
    limit = time.monotonic() + STOP_LIMIT_S
    late = [
        worker_id
        for worker_id, worker in left.items()
        if worker.is_kept and not until_ended(worker.keeper, max(0.0, limit - time.monotonic()))
    ]
    if late:
        print(f"still running after {STOP_LIMIT_S:.0f} s: {', '.join(late)}", file=sys.stderr)
        return 1
    print(f"all have left; {job_directory.to_continue(job_dir)}")
    return 0


DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
"""The files, in a directory for each system."""
IMAGE = "registry.example.com/my-training:1"
MODEL = "- --model=digits_cnn"
PARTS = r"(?<![\w-])elastic(?=-(?:launcher|master|metrics|read-token|token|workers|w\d)\b)"
"""Names of a job's own objects begin like this. Volume and alerts may serve several jobs."""
SHARED = ("volume.yaml",)
"""Files that are the same for all jobs of a namespace."""
NO_NAMES = ("true", "false", "yes", "no", "on", "off", "y", "n", "null")


@dataclasses.dataclass(frozen=True)
class OwnJob:
    """What the files for Kubernetes are to name; empty: what they name already.

    Attributes:
      name: begins the names of all objects, so that a namespace may hold several jobs.
      image: holds the training.
      training: flags of `run` that say what is trained, or a script with its arguments.

    Raises:
      ConfigurationError: Kubernetes would not take the name.
    """

    name: str = ""
    image: str = ""
    training: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.name:
            check_job_name(self.name, "--name")
        if self.name in NO_NAMES:
            raise ConfigurationError(
                f"--name={self.name} was given, which YAML does not read as a name. Use another."
            )

    def written_into(self, text: str) -> str:
        """Returns the text of a file, for this job."""
        if name := self.name:
            text = re.sub(PARTS, name, text)
            text = text.replace("hvd-elastic-launcher", f"hvd-{name}-launcher")
            text = re.sub(
                r"(app: |--job_name=|job-name: |resourceNames: \[)elastic\b", rf"\g<1>{name}", text
            )
            text = re.sub(r"(?m)^  name: elastic$", f"  name: {name}", text)
            text = text.replace("/jobs/demo", f"/jobs/{name}")
        if self.training:
            # Kubernetes would replace $(NAME) by the value of a variable.
            words = [word.replace("$(", "$$(") for word in self.training]
            words = [f"- {json.dumps(word, ensure_ascii=False)}" for word in words]
            lines = rf"(?m)^( *){MODEL}$"
            text = re.sub(lines, lambda m: "\n".join(m[1] + word for word in words), text)
        return text.replace(IMAGE, self.image or IMAGE)


def words_of(training: str) -> list[str]:
    """Returns the words of `--training`, which are quoted as for a shell.

    Raises:
      ConfigurationError: a quotation mark is missing.
    """
    try:
        return shlex.split(training)
    except ValueError as error:
        raise ConfigurationError(
            f"--training={training} cannot be split into words: {error}."
        ) from error


def write_manifests(directory: Path, job: OwnJob) -> int:
    """Writes the files into a directory, and prints their names. Other files stay.

    Raises:
      ConfigurationError: files are there that differ, or the directory cannot be written. Nothing
        is written then.
    """
    files_of_job = {
        directory / source.relative_to(DEPLOY): (
            source.read_text() if source.name in SHARED else job.written_into(source.read_text())
        )
        for source in sorted(path for path in DEPLOY.glob("*/*") if path.is_file())
    }
    changed = [
        str(target)
        for target, text in files_of_job.items()
        if target.exists() and not (target.is_file() and target.read_text() == text)
    ]
    if changed:
        raise ConfigurationError(
            f"{', '.join(changed)} would be overwritten, and differ from what would be written. "
            "Give another directory: ctl manifests DIRECTORY."
        )
    try:
        for target, text in files_of_job.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be written: {error.strerror}.") from error
    print("\n".join(map(str, files_of_job)))
    return 0
