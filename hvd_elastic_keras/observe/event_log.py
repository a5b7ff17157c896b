"""`events.jsonl`: one JSON object per line. What stands in it: `common.events`."""

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
"""`steps_taken` is written each second at first, and in a log of age t each t/300: 2,600 lines
in a week, 3,300 in two months."""
MOST_UNWRITTEN = 2**20
"""Bytes of entries that wait for room on the disk."""
EntryListener = Callable[[float, events.Entry], None]
"""Is told the time (seconds since 1970) and the content of each entry."""


class EventLog:
    """Appends entries; each is on disk (in the system's cache) when it has been written.

    On a full disk they wait for room. If that becomes too much, some are left out: the next one
    shows by its `seq` that they are missing.

    Args:
      listeners: are told of all entries, also of those `steps_taken` that are not written.
    """

    def __init__(self, path: Path, listeners: Iterable[EntryListener] = ()) -> None:
        self._listeners = tuple(listeners)
        self._seq, self._began = _newest_and_beginning(path)
        self._steps_written = 0.0
        self._held: tuple[float, events.StepsTaken] | None = None
        """The newest one that was not written; with the end of the job it is."""
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
        """At the end of an epoch there are newer numbers than those that are held."""
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
    with contextlib.suppress(OSError):  # a full disk of another host may say so only now
        os.close(file)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def is_due(now: float, newest: float, began: float) -> bool:
    """Whether another point of a curve is written, so that there are never too many.

    >>> is_due(now=100.9, newest=100.0, began=0.0), is_due(now=101.0, newest=100.0, began=0.0)
    (False, True)
    >>> is_due(now=3610.0, newest=3600.0, began=0.0), is_due(now=3613.0, newest=3600.0, began=0.0)
    (False, True)
    """
    gap_s = max(LEAST_GAP_S, (now - began) / POINTS_PER_AGE)
    return not 0 <= now - newest < gap_s  # a clock that was set back has to begin again


def _newest_and_beginning(path: Path) -> tuple[int, float]:
    """The number of the newest entry of earlier runs, and the time of the first; 0: none."""
    newest, began = 0, 0.0
    with contextlib.suppress(OSError), path.open(errors="replace") as file:
        for entry in files.event_entries(file):
            number, written = entry.get("seq"), entry.get("time")
            newest = max(newest, number) if isinstance(number, int) else newest
            began = began or (float(written) if isinstance(written, int | float) else 0.0)
    return newest, began


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end, because a launcher was killed while it wrote."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")
    return False
