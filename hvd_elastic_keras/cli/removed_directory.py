"""Somebody removes the directory of a job that runs: it is told once, and made again."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from hvd_elastic_keras.cli.conclusion import EXIT_FAILED
from hvd_elastic_keras.cli.job_directory import locked
from hvd_elastic_keras.common import files, locks
from hvd_elastic_keras.observe.console import Console

LOOK_EVERY_S = 0.25
KEPT = (files.JOB, files.JOB_ID, files.MASTER, files.CERTIFICATE)
"""What workers and `ctl` read, and nobody writes while the job runs."""


class Writer(Protocol):
    """What is needed of the controller."""

    def begin_files_again(self) -> None:
        """Makes its files anew."""

    def kill_workers(self) -> None:
        """Ends all that run."""


class JobFiles:
    """The files of a job that runs, by its `events.jsonl`, which is there from the start.

    Args:
      writer: writes those that change.
    """

    def __init__(self, job_dir: Path, console: Console, writer: Writer) -> None:
        self._job_dir = job_dir
        self._console = console
        self._writer = writer
        self._events = _identity(job_dir / files.EVENTS)
        self._kept = {n: _content(job_dir / n) for n in KEPT if (job_dir / n).exists()}
        self._locked = _identity(job_dir / files.LOCK)
        self._told: set[str] = set()

    def look(self) -> None:
        """Makes the files again if they were removed."""
        if _identity(self._job_dir / files.EVENTS) == self._events:
            return
        what = f"{self._job_dir} was removed, with the job's checkpoints, logs and events until now"
        try:
            self._make_again()
        except locks.LockHeldError:
            self._tell(f"{what}, and another job runs there: this one ends")
            self._writer.kill_workers()
            self._console.end()
            os._exit(EXIT_FAILED)  # to clear away would hit the job that runs there
        except OSError as error:
            self._tell(
                f"{what}, and cannot be made again ({error.strerror}). Training goes on, but "
                "nothing of it is kept as long as that is so: see to it, or stop the job"
            )
        else:
            self._events = _identity(self._job_dir / files.EVENTS)
            self._tell(
                f"{what}. Training goes on and writes there again. If all workers fail before the "
                "next checkpoint, it begins anew; if the launcher is killed, nobody can follow it"
            )

    def _make_again(self) -> None:
        (self._job_dir / files.LOGS).mkdir(parents=True, exist_ok=True)
        if _identity(self._job_dir / files.LOCK) != self._locked:
            locked(self._job_dir)  # as long as this process runs
            self._locked = _identity(self._job_dir / files.LOCK)
        for name, (content, is_secret) in self._kept.items():
            write = files.write_secret if is_secret else files.write_bytes
            write(self._job_dir / name, content)
        self._writer.begin_files_again()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._console.line(f"warning: {text}.")
            self._told.add(text)


@contextlib.asynccontextmanager
async def watched(found: JobFiles) -> AsyncIterator[None]:
    """Looks after the files of a job meanwhile."""
    watching = asyncio.create_task(_watch(found))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(found: JobFiles) -> None:
    while True:
        found.look()
        await asyncio.sleep(LOOK_EVERY_S)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _content(path: Path) -> tuple[bytes, bool]:
    """What stands in a file, and whether it is the user's alone."""
    return path.read_bytes(), files.is_secret(path.stat())
