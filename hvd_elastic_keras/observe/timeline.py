"""Merges Horovod's timelines of all rounds and the job's own events into one Chrome trace of a run.

Horovod's format (https://horovod.readthedocs.io/en/stable/timeline_include.html) is the Trace
Event Format of Chrome; each round's file begins with the time when it was started. Most of the
events are in one line, which may have any length. So files are read in pieces: at most a piece and
an event are in memory at a time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from hvd_elastic_keras.common import events, files

Event = dict[str, Any]
PIDS_PER_ROUND = 1_000_000
"""Horovod numbers its rows ("processes", one per tensor) from 0 in each round.

The rows of each round are moved by this much more, so that they stay apart.
"""
START = "start_time_since_epoch_in_micros"
SHOWN = {
    events.name_of(kind)
    for kind in (
        events.RoundOpened,
        events.RoundRunning,
        events.WorkerExited,
        events.WorkerStarted,
        events.JobStopping,
        events.SlotsGranted,
        events.SlotsRevoked,
    )
}
"""Entries of `events.jsonl` that are marked in the trace."""
RUN_BEGINS = events.name_of(events.JobStarted)
PIECE = 2**16
"""Characters that are read at a time."""
LONGEST_EVENT = 2**20
"""Most characters of an event; anything longer is no event."""


def write_merged(job_dir: Path, target: Path) -> int:
    """Writes one trace of the last run of a job; returns the number of rounds in it.

    Raises:
      OSError: a file cannot be read or written.
    """
    rounds = sorted((job_dir / files.TIMELINES).glob("round-*.json"))
    with (job_dir / files.EVENTS).open(errors="replace") as lines:
        happened = entries_of_last_run(lines)
    begin_us = happened[0]["time"] * 1e6 if happened else 0.0
    traces = (_events_of_round(n, path, begin_us) for n, path in enumerate(rounds, 1))
    every_event = itertools.chain(_marks(happened, begin_us), *traces)

    def write(path: Path) -> None:
        with path.open("w") as file:
            file.write('{"traceEvents": [\n')
            for number, event in enumerate(every_event):
                file.write((",\n" if number else "") + json.dumps(event))
            file.write('\n], "displayTimeUnit": "ms"}\n')

    files.write_atomically(target, write)
    return len(rounds)


def entries_of_last_run(lines: Iterable[str]) -> list[Event]:
    """Returns the entries of `events.jsonl` from the last `job_started` on.

    A line that is not JSON is left out: a launcher may have been killed while it wrote.
    """
    found: list[Event] = []
    for entry in files.event_entries(lines):
        if "time" not in entry:
            continue
        if entry["event"] == RUN_BEGINS:
            found = []
        found.append(entry)
    return found


def parse(file: TextIO) -> Iterator[Event]:
    """Yields the events in one of Horovod's files, even if the process was killed while writing."""
    decoder = json.JSONDecoder()
    text, position = "", 0
    while True:
        start = text.find("{", position)
        try:
            if start >= 0:
                with files.only_value_errors():
                    event, position = decoder.raw_decode(text, start)
                yield event
                continue
        except ValueError:
            pass  # the rest of it comes with the next piece, or was never written
        begun = text[start:] if start >= 0 else ""
        piece = file.read(PIECE)
        if not piece or len(begun) > LONGEST_EVENT:
            return
        text, position = begun + piece, 0


def _events_of_round(number: int, path: Path, begin_us: float) -> Iterator[Event]:
    with path.open(errors="replace") as file:
        yield from _shifted(parse(file), begin_us, number * PIDS_PER_ROUND, path.stem)


def _shifted(
    events: Iterable[Event], begin_us: float, first_pid: int, name: str
) -> Iterator[Event]:
    """Moves one round's events to the job's clock, and to rows of their own."""
    offset_us = 0.0
    for event in events:
        moved = {**event, "pid": first_pid + event.get("pid", 0)}
        if START in event.get("args", {}):
            offset_us = event["args"][START] - begin_us
            moved["args"] = {"name": name}
        elif event.get("name") == "process_name":
            moved["args"] = {"name": f"{name} {event['args'].get('name', '')}"}
        if "ts" in event:
            moved["ts"] = event["ts"] + offset_us
        yield moved


def _marks(entries: Iterable[Event], begin_us: float) -> Iterator[Event]:
    """Yields the changes of membership as instant events across all rows."""
    yield {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "membership"}}
    yield {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": -1}}
    for entry in entries:
        if entry["event"] in SHOWN:
            yield {
                "name": entry["event"],
                "ph": "i",
                "s": "g",
                "pid": 0,
                "tid": 0,
                "ts": entry["time"] * 1e6 - begin_us,
                "args": {k: v for k, v in entry.items() if k not in ("seq", "time", "event")},
            }
