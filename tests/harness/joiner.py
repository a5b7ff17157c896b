"""A worker that joins a job by itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.harness import faults, warm_launcher
from tests.harness.job import LIMIT_S, REPOSITORY, RUN, Job

if TYPE_CHECKING:
    from typing_extensions import Self


class Joiner:
    """`run --join`, as a user would start it on another host. Use it in a `with` block.

    Only its imports and those of its worker are those of all joiners: see `warm_launcher.py`.
    """

    def __init__(self, job: Job, host: str, *flags: str, directory: Path | None = None) -> None:
        self._job = job
        self._flags = [f"--host_name={host}", *flags]
        self._directory = directory or REPOSITORY
        self._output = job.job_dir.parent / f"joiner-{host}.txt"

    def __enter__(self) -> Self:
        where = [] if any(f.startswith("--join=") for f in self._flags) else self._by_directory()
        with self._output.open("ab") as output:
            self.process = warm_launcher.Launcher(
                RUN,
                [*where, *self._flags],
                environment={
                    **os.environ,
                    "TMPDIR": str(self._job.job_dir.parent),
                    faults.FILE: str(self._job.plan.path),
                },
                outputs=(output.fileno(), output.fileno()),
                joins=True,
                directory=self._directory,
            )
        return self

    def _by_directory(self) -> list[str]:
        return [f"--join={self._job.job_dir}"]

    def __exit__(self, *_: object) -> None:
        for process in self.workers():
            process.kill()
        self.process.kill()
        self.process.wait(LIMIT_S)

    def workers(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    def exit_code(self) -> int:
        """Waits for the end; returns the exit code."""
        return self.process.wait(LIMIT_S)

    @property
    def output(self) -> str:
        """The output so far."""
        return self._output.read_text()
