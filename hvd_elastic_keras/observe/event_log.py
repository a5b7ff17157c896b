"""Writes `events.jsonl`: one JSON object per line. `common.events` describes the entries."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hvd_elastic_keras.common import events, files

LEAST_GAP_S = 1.0
POINTS_PER_AGE = 300
"""`steps_taken` is written every second at first, and every t/300 in a log of age t.

That makes 2,600 lines in a week, and 3,300 in two months.
"""
MOST_UNWRITTEN = 2**20
"""Most bytes of entries that wait for room on the disk."""
EntryListener = Callable[[float, events.Entry], None]
"""A function that receives the time (seconds since 1970) and the content of each entry."""


class EventLog:
    """Appends entries to the file; a written entry is on disk (in the system's cache).

    On a full disk, entries wait for room. If too many wait, some are left out. The `seq` of the
    next entry shows that entries are missing.

    Args:
      listeners: functions that receive all entries, even `steps_taken` entries not written.
    """

    def __init__(self, path: Path, listeners: Iterable[EntryListener] = ()) -> None:
        self._listeners = tuple(listeners)
        self._seq, self._began = _newest_and_beginning(path)
        self._steps_written = 0.0
        self._held: tuple[float, events.StepsTaken] | None = None
        """The newest `steps_taken` entry if it was not written; written at the end of the job."""
        self._unwritten = b"\n" if _is_torn(path) else b""
        self._file = _opened(path)

    def write(self, entry: events.Entry) -> None:
        """Appends one entry."""
        now = round(time.time(), 3)
        self._began = self._began or now
        if isinstance(entry, events.StepsTaken):
            self._hold_or_append(entry, now)
        else:
            self._let_go(entry)
            self._append(entry, now)
        for hear in self._listeners:
            hear(now, entry)

    def _hold_or_append(self, entry: events.StepsTaken, now: float) -> None:
        if is_due(now, self._steps_written, self._began):
            self._steps_written, self._held = now, None
            self._append(entry, now)
        else:
            self._held = now, entry

    def _let_go(self, entry: events.Entry) -> None:
        """Writes the held entry at the end of the job, and drops it at the end of an epoch.

        At the end of an epoch there are newer numbers.
        """
        if self._held is not None and isinstance(entry, events.JobFinished):
            time_s, held = self._held
            self._append(held, time_s)
        if isinstance(entry, events.EpochEnd | events.JobFinished):
            self._held = None

    def _append(self, entry: events.Entry, now: float) -> None:
        self._seq += 1
        line = {
            "seq": self._seq,
            "time": now,
            "event": events.name_of(type(entry)),
            **events.fields_of(entry),
        }
        if len(self._unwritten) < MOST_UNWRITTEN:
            self._unwritten += f"{json.dumps(line)}\n".encode()
        self._write_what_waits()

    def _write_what_waits(self) -> None:
        # A full disk must not stop the master between two decisions.
        with contextlib.suppress(OSError):
            while self._unwritten:
                count = os.write(self._file, self._unwritten)
                self._unwritten = self._unwritten[count:]

    def close(self) -> None:
        """Closes the file."""
        self._write_what_waits()
        _close(self._file)
        self._file = -1


def _close(file: int) -> None:
    with contextlib.suppress(OSError):  # a full disk on another host may be reported only now
        os.close(file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def is_due(now: float, newest: float, began: float) -> bool:
    """Whether to write another point of a curve, so that there are never too many points.

    >>> is_due(now=100.9, newest=100.0, began=0.0), is_due(now=101.0, newest=100.0, began=0.0)
    (False, True)
    >>> is_due(now=3610.0, newest=3600.0, began=0.0), is_due(now=3613.0, newest=3600.0, began=0.0)
    (False, True)
    """
    gap_s = max(LEAST_GAP_S, (now - began) / POINTS_PER_AGE)
    return not 0 <= now - newest < gap_s  # if the clock was set back, points begin again


def _newest_and_beginning(path: Path) -> tuple[int, float]:
    """Returns the number of the newest entry of earlier runs and the first one's time; 0: none."""
    newest, began = 0, 0.0
    with contextlib.suppress(OSError), path.open(errors="replace") as file:
        for entry in files.event_entries(file):
            number, written = entry.get("seq"), entry.get("time")
            newest = max(newest, number) if isinstance(number, int) else newest
            began = began or (float(written) if isinstance(written, int | float) else 0.0)
    return newest, began


def _is_torn(path: Path) -> bool:
    """Whether the last line is incomplete, because a launcher was killed while it wrote."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")
    return False
