"""Decides whether and where the course of a job is written for TensorBoard."""

from __future__ import annotations

import socket
from collections import deque
from pathlib import Path

from hvd_elastic_keras.cli.job_directory import shown
from hvd_elastic_keras.common import events, files
from hvd_elastic_keras.observe import job_history
from hvd_elastic_keras.observe.console import Console
from hvd_elastic_keras.observe.event_log import EntryListener

RUN = "elastic"
"""Name of the run, beside `train` and `validation` of the user's own callback."""
MOST_KEPT = 100
"""Most entries kept until an entry says where to write them."""


def asked_for(job_dir: Path, console: Console) -> EntryListener:
    """Returns a listener that writes to the directory of the job."""
    return _log(job_dir / files.TENSORBOARD, job_dir / files.TENSORBOARD, console)


def beside_users(job_dir: Path, console: Console) -> EntryListener:
    """Returns a listener that writes beside the user's `keras.callbacks.TensorBoard`, if any."""
    return _BesideUsers(job_dir, console).hear


class _BesideUsers:
    """Begins to write when a worker has reported the user's callback.

    It writes a run of its own below the callback's directory, so that one `tensorboard --logdir`
    shows both. If the callback is on another host, it writes to the directory of the job.
    """

    def __init__(self, job_dir: Path, console: Console) -> None:
        self._job_dir = job_dir
        self._console = console
        self._log: EntryListener | None = None
        self._before: deque[tuple[float, events.Entry]] = deque(maxlen=MOST_KEPT)

    def hear(self, time_s: float, entry: events.Entry) -> None:
        """Takes an entry and the time when it was written (seconds since 1970)."""
        used = self._used(entry) if self._log is None else None
        if used is not None:
            self._log = self._begin(used)
            for kept in self._before:
                self._log(*kept)
        if self._log is not None:
            self._log(time_s, entry)
        elif isinstance(entry, events.RoundRunning | events.EpochEnd):
            self._before.append((time_s, entry))

    def _used(self, entry: events.Entry) -> events.TensorBoardUsed | None:
        """Returns the report of the callback, sent now or to an earlier launcher, if any."""
        if isinstance(entry, events.MasterRestarted):
            told = [t.entry for t in job_history.read(self._job_dir)]
            return next((e for e in reversed(told) if isinstance(e, events.TensorBoardUsed)), None)
        return entry if isinstance(entry, events.TensorBoardUsed) else None

    def _begin(self, used: events.TensorBoardUsed) -> EntryListener:
        if used.host != socket.gethostname():
            return asked_for(self._job_dir, self._console)
        directory = Path(used.directory)
        return _log(directory / RUN, directory, self._console)


def _log(directory: Path, to_look_at: Path, console: Console) -> EntryListener:
    # Imported late, because the import takes a while.
    from hvd_elastic_keras.observe.tensorboard import TensorBoardLog

    console.info(f"for TensorBoard: tensorboard --logdir={shown(to_look_at)}")
    return TensorBoardLog(directory, lambda text: console.line(f"warning: {text}")).hear
