"""Sends signals to processes of one job, and to no others.

A descriptor of a process (pidfd) is opened before the process is looked at. So the signal goes to
the very process that was found to belong to the job, even if its number is given to another process
meanwhile. `JournalWatch` kills a launcher as soon as its journal has grown past some length.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.control import WorkerStatus
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.launchers.kept_workers import kept_workers
from hvd_elastic_keras.settings import env

SLOW_PERIOD_S = 0.1
LOOK_S = 0.0005
"""Shorter than the sync of a line to disk: the effects of the line are not published yet."""


class Victim:
    """A process of the job. Close it after use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Closes the descriptor of the process."""
        os.close(self._descriptor)


def worker_of(job_dir: Path, worker: WorkerStatus) -> Victim | str:
    """Returns the process of a worker, or why it cannot be broken."""
    if worker.host != LOCALHOST or worker.pid is None:
        return f"{worker.worker_id} does not run on this machine"
    expected = {
        f"{env.JOB_DIR}={job_dir}".encode(),
        f"{env.WORKER_ID}={worker.worker_id}".encode(),
    }

    def belongs() -> bool:
        # A forked worker has the environment of the fork server. Its keeper knows the worker.
        kept = kept_workers(job_dir / files.WORKERS).get(worker.worker_id)
        is_kept = kept is not None and kept.pid == worker.pid
        return is_kept or expected <= _environment(worker.pid)

    return _checked(worker.pid, belongs, worker.worker_id)


def address_of(host: str) -> str:
    """Returns the IPv4 address of a host's name; empty if it has none."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host)
    return ""


def launcher_of(job_dir: Path, pid: int) -> Victim | str:
    """Returns the launcher's process, known by its open events file, or why it is not there."""
    return _checked(pid, lambda: str(job_dir / files.EVENTS) in _open_files(pid), "the launcher")


def _checked(pid: int, belongs: Callable[[], bool], name: str) -> Victim | str:
    """Returns the process if it is the one that is meant, otherwise why not."""
    try:
        victim = Victim(pid)
    except OSError:
        return f"{name} (process {pid}) was gone"
    try:
        if belongs():
            return victim
    except OSError:
        pass  # it has ended meanwhile, or belongs to somebody else
    victim.close()
    return f"process {pid} does not belong (any more) to {name}"


def _environment(pid: int | None) -> set[bytes]:
    return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


def _open_files(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(link))
    return found


class Hold:
    """Stops a process for a while, or again and again. At the end, it runs on, whatever happens.

    Args:
      duration_s: seconds in all.
      stop_s: seconds that the process is stopped at a time.
      run_s: seconds that the process runs in between.
    """

    def __init__(self, victim: Victim, duration_s: float, stop_s: float, run_s: float) -> None:
        self._victim = victim
        self._times = duration_s, stop_s, run_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"hold-{victim.pid}", daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        """Whether the process runs on."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Lets the process run on, now."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        duration_s, stop_s, run_s = self._times
        end = time.monotonic() + duration_s
        while not self._over.is_set() and (left_s := end - time.monotonic()) > 0:
            self._victim.send(signal.SIGSTOP)
            self._over.wait(min(stop_s, left_s))
            self._victim.send(signal.SIGCONT)
            self._over.wait(run_s)


def hold(victim: Victim, duration_s: float, stopped_share: float) -> Hold:
    """Holds a process back for a share of the time; a share of 1 suspends it."""
    if stopped_share >= 1.0:
        return Hold(victim, duration_s, duration_s, 0.0)
    stop_s = stopped_share * SLOW_PERIOD_S
    return Hold(victim, duration_s, stop_s, SLOW_PERIOD_S - stop_s)


class JournalWatch:
    """Watches a launcher's journal in a thread, and kills the launcher. Close it after use.

    Args:
      past_bytes: the launcher is killed when its journal is longer than this.
      not_of: the journal (its inode) of a launcher that is killed already; 0 if there is none.
      launcher: returns the launcher's process; None if it is not there.
    """

    def __init__(
        self, job_dir: Path, past_bytes: int, not_of: int, launcher: Callable[[], Victim | None]
    ) -> None:
        self._journal = job_dir / files.JOURNAL
        self._past_bytes = past_bytes
        self._not_of = not_of
        self._launcher = launcher
        self._over = threading.Event()
        self.killed: tuple[int, int] | None = None
        """The journal (its inode) and its length, once the launcher is killed or is about to be."""
        self._thread = threading.Thread(target=self._work, name="journal-watch", daemon=True)
        self._thread.start()

    def length(self) -> int:
        """Returns the length of the present launcher's journal."""
        return self._look()[1]

    def close(self) -> None:
        """Ends the watch. No launcher is killed from now on."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(LOOK_S):
            journal, length = self._look()
            if length > self._past_bytes and (victim := self._launcher()):
                self.killed = journal, length  # first: whoever sees it gone must know why
                victim.send(signal.SIGKILL)
                victim.close()
                return

    def _look(self) -> tuple[int, int]:
        try:
            found = self._journal.stat()
        except FileNotFoundError:
            return 0, 0
        return (0, 0) if found.st_ino == self._not_of else (found.st_ino, found.st_size)
