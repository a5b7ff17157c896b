"""What a report of a bug needs: versions, the host, environment variables, and a job.

Values that may be secret are left out: tokens, keys and passwords, and the arguments of a script.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from hvd_elastic_keras.cli import control_job
from hvd_elastic_keras.cli.checks import machine
from hvd_elastic_keras.cli.find_model import split_arguments
from hvd_elastic_keras.common import env, events, files, versions
from hvd_elastic_keras.master.journal import Journal
from hvd_elastic_keras.observe import job_history
from hvd_elastic_keras.observe.console import counted

PREFIXES = (
    *("CUDA_", "GLOO_", "HOROVOD_", "HVD_", "KERAS_", "NCCL_", "OMP_", "PYTHON", "TF_", "XLA_"),
)
"""Beginnings of the names of environment variables that matter."""
MAY_BE_SECRET = ("AUTH", "CREDENTIAL", "KEY", "PASS", "SECRET", "TOKEN")


def show_environment(job_dir: Path | None, takes_value: Callable[[str], bool]) -> int:
    """Prints the report.

    Args:
      job_dir: the directory of the job that is meant, if any.
      takes_value: whether a flag of `run` is followed by its value.
    """
    of_job = _of_job(job_dir, takes_value) if job_dir else []
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


def _of_job(job_dir: Path, takes_value: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    yield "job", str(job_dir)
    history = job_history.read(job_dir)
    started = next((t.entry for t in history if isinstance(t.entry, events.JobStarted)), None)
    if started is not None:
        yield "trains", f"{started.model}, from {started.num_workers} workers on"
    last = Journal(job_dir / files.JOURNAL).last
    if last is not None:
        flags, script = split_arguments(list(last.command), takes_value)
        yield "flags", " ".join(word for _, _, words in flags for word in words) or "none"
        yield "script", next((word for word in script if word != "--"), "none")
    rounds = sum(isinstance(t.entry, events.RoundRunning) for t in history)
    end = history[-1].entry if history else None
    how = "has not ended"
    if isinstance(end, events.JobFinished):
        how = control_job.how_it_ended(end.status, end.step, end.training, end.reason)
    yield "course", f"{counted(rounds, 'round')}; {how}"
