"""The notes of keepers about local workers, which a later launcher or command of the job reads."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

import msgspec

from hvd_elastic_keras.launchers import keeper, open_files

KEEPER = (sys.executable, "-I", "-S", str(Path(keeper.__file__).resolve()))
"""The command that starts a keeper, without its arguments."""


class WorkerRecord(msgspec.Struct, frozen=True):
    """The notes of a keeper about its worker.

    Attributes:
      started: time at which the process started, in clock ticks. With it, another process with the
        same `pid` is not mistaken for the worker.
      exit: return code, as in `WorkerExit.return_code`; None while the worker runs.
    """

    pid: int
    started: int | None
    keeper: int
    keeper_started: int | None
    scratch: str
    exit: int | None

    @property
    def is_kept(self) -> bool:
        """Whether the keeper lives. Without it, the worker ends at once or soon."""
        return keeper.start_ticks(self.keeper) == self.keeper_started

    @property
    def noted_in(self) -> Path | None:
        """The directory in which a living keeper writes its notes; None if the keeper is gone."""
        with contextlib.suppress(OSError, IndexError):
            command = Path(f"/proc/{self.keeper}/cmdline").read_bytes().split(b"\0")
            return Path(os.fsdecode(command[len(KEEPER)])).parent
        return None

    def belongs_to(self, directory: Path) -> bool:
        """Returns whether the keeper writes its notes in `directory`, and not in its original."""
        with contextlib.suppress(OSError):
            place = self.noted_in  # read once: the keeper may end at any time
            return place is not None and place.samefile(directory)
        return False

    def ask_to_leave(self) -> None:
        """Sends SIGTERM to the worker, which leaves after its current step."""
        if keeper.start_ticks(self.pid) == self.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL to the worker's process group."""
        if keeper.start_ticks(self.pid) == self.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def kept_workers(directory: Path) -> dict[str, WorkerRecord]:
    """Returns the living local workers by id, whether their launcher lives or not.

    In a copy of a job directory, these are the workers of the other job; see
    `WorkerRecord.belongs_to`.
    """
    found = ((path.stem, read_record(path)) for path in directory.glob("*.json"))
    return {worker_id: kept for worker_id, kept in found if kept and kept.is_kept}


def end_kept_workers(workers: Collection[WorkerRecord]) -> None:
    """Ends workers without a launcher, and waits until they are gone."""
    for kept in workers:
        kept.kill()
    for kept in workers:
        wait_for(kept)


def read_record(path: Path) -> WorkerRecord | None:
    """Returns the notes in a file; None if there are none."""
    try:
        return decoded(path.read_bytes())
    except OSError:
        return None


def decoded(data: bytes) -> WorkerRecord | None:
    """Returns the notes that a file holds; None if it holds something else."""
    try:
        return msgspec.json.decode(data, type=WorkerRecord)
    except msgspec.DecodeError:
        return None


def wait_for(kept: WorkerRecord) -> int | None:
    """Waits for a keeper that is no child of this process; returns None, its code is unknown."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(kept.keeper)
        try:
            if kept.is_kept:
                open_files.until_readable(descriptor)
        finally:
            os.close(descriptor)
    return None
