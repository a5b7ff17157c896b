"""Reads from `events.jsonl` how a job has changed, and what each change has cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from hvd_elastic_keras.common import events, files


@dataclasses.dataclass(frozen=True)
class Timed:
    """An entry and the time when it was written (seconds since 1970)."""

    time: float
    entry: events.AnyEntry


@dataclasses.dataclass(frozen=True)
class Loss:
    """How a job has recovered from the loss of one worker.

    Attributes:
      noticed_at: time of the first entry that tells of the loss; None if there is none yet.
      running: the first round without the worker; None if there is none yet.
    """

    noticed_at: float | None = None
    running: events.RoundRunning | None = None


def read(job_dir: Path) -> list[Timed]:
    """Returns all readable entries of a job; none if the job has no events yet."""
    try:
        with (job_dir / files.EVENTS).open(errors="replace") as lines:
            return timed(files.event_entries(lines))
    except FileNotFoundError:
        return []


def timed(contents: Iterable[dict[str, object]]) -> list[Timed]:
    """Returns the entries that are of a known type and have a time."""
    found = ((content.get("time"), events.parse(content)) for content in contents)
    return [
        Timed(float(time), entry)
        for time, entry in found
        if isinstance(time, int | float) and entry is not None
    ]


def loss_of(history: Sequence[Timed], worker_id: str, since: float) -> Loss:
    """Returns what followed after something was done to a worker at the time `since`."""
    later = [t for t in history if t.time >= since]
    noticed = [number for number, t in enumerate(later) if _tells_of(t.entry, worker_id)]
    if not noticed:
        return Loss()
    for t in later[noticed[0] :]:
        if isinstance(t.entry, events.RoundRunning) and worker_id not in t.entry.members:
            return Loss(later[noticed[0]].time, t.entry)
    return Loss(later[noticed[0]].time)


def _tells_of(entry: events.AnyEntry, worker_id: str) -> bool:
    """Whether an entry says that this worker is gone or is leaving."""
    match entry:
        case events.WorkerExited(worker_id=name, failed=True):
            return name == worker_id
        case events.SlotsRevoked(workers=names):
            return worker_id in names
    return False
