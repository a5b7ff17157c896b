"""One Chrome trace of a whole job: Horovod's timelines of all rounds, and the job's own events.

Horovod's format (https://horovod.readthedocs.io/en/stable/timeline_include.html) is the Trace
Event Format of Chrome; each round's file begins with the time it was started at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hvd_elastic_keras import files

Event = dict[str, Any]
PIDS_PER_ROUND = 1_000_000
"""Horovod numbers its rows ("processes", one per tensor) from 0 in each round."""
START = "start_time_since_epoch_in_micros"
SHOWN = ("round_opened", "round_running", "worker_exited", "worker_started", "job_stopping")
"""Events of `events.jsonl` that are marked in the trace; and all about slots."""


def file_of_round(directory: str | Path, number: int) -> Path:
    """Where rank 0 of a round writes Horovod's timeline."""
    return Path(directory) / f"round-{number:06d}.json"


def write_merged(job_dir: Path, target: Path) -> int:
    """Writes one trace of all rounds and events of a job; returns the number of rounds in it."""
    rounds = sorted((job_dir / files.TIMELINES).glob("round-*.json"))
    entries = [json.loads(line) for line in (job_dir / files.EVENTS).read_text().splitlines()]
    begin_us = entries[0]["time"] * 1e6 if entries else 0.0
    traces = [
        entry
        for number, path in enumerate(rounds, 1)
        for entry in _shifted(parse(path.read_text()), begin_us, number * PIDS_PER_ROUND, path.stem)
    ]
    trace = {"traceEvents": [*_marks(entries, begin_us), *traces], "displayTimeUnit": "ms"}

    def write(path: Path) -> None:
        path.write_text(json.dumps(trace))

    files.write_atomically(target, write)
    return len(rounds)


def parse(text: str) -> list[Event]:
    """The events in a file of Horovod's, also if the process was killed while it wrote."""
    decoder = json.JSONDecoder()
    events: list[Event] = []
    position = text.find("{")
    while position >= 0:
        try:
            event, position = decoder.raw_decode(text, position)
        except ValueError:
            break  # cut off here
        events.append(event)
        position = text.find("{", position)
    return events


def _shifted(
    events: Iterable[Event], begin_us: float, first_pid: int, name: str
) -> Iterator[Event]:
    """One round's events on the job's clock, in rows of its own."""
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
    """What happened to the membership, as instant events across all rows."""
    yield {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "membership"}}
    yield {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": -1}}
    for entry in entries:
        if entry["event"] in SHOWN or entry["event"].startswith("slots_"):
            yield {
                "name": entry["event"],
                "ph": "i",
                "s": "g",
                "pid": 0,
                "tid": 0,
                "ts": entry["time"] * 1e6 - begin_us,
                "args": {k: v for k, v in entry.items() if k not in ("time", "event")},
            }
