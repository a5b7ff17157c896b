"""What `ctl list` and `ctl logs` show: the jobs below `./jobs`, and the output of workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hvd_elastic_keras.cli import control_job, job_directory
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError
from hvd_elastic_keras.observe import job_history
from hvd_elastic_keras.observe.console import table

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
