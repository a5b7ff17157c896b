"""Commands of the benchmarks that start whole processes, and the memory that these hold."""

from __future__ import annotations

import sys
from pathlib import Path

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
"""Environment variables that hide TensorFlow's messages and the GPUs."""
RUN = (sys.executable, "-m", "hvd_elastic_keras.run")
JOB_DIR = "JOB_DIR"
"""Stands for the job directory in a command."""


def elastic(script: Path, workers: int, *flags: str) -> tuple[str, ...]:
    """Returns the command of a job that runs a script, with "elastic" as the script's argument."""
    return (*RUN, f"--num_workers={workers}", *flags, JOB_DIR, str(script), "elastic")


def in_job_dir(command: tuple[str, ...], job_dir: Path) -> tuple[str, ...]:
    """Returns a command with its job directory in place of `JOB_DIR`."""
    return tuple(f"--job_dir={job_dir}" if part == JOB_DIR else part for part in command)


def peak_kib(process: int | str = "self") -> int:
    """Returns the most memory that a process has held so far; 0 if the process is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmHWM:")[2].split()[0]) if "VmHWM:" in status else 0
