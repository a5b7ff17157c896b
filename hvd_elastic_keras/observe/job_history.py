"""What `events.jsonl` tells of the changes of a job, and what each of them has cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hvd_elastic_keras.common import events, files


@dataclasses.dataclass(frozen=True)
class Timed:
    """An entry, and when it was written (seconds since 1970)."""

    time: float
    entry: events.AnyEntry


@dataclasses.dataclass(frozen=True)
class Loss:
    """How a job has got over the loss of one worker.

    Attributes:
      noticed_at: when the first entry was written that tells of it; None is not yet.
      running: the first round without the worker; None if there is none yet.
    """

    noticed_at: float | None = None
    running: events.RoundRunning | None = None


class RoundOfTerm(NamedTuple):
    """A round, and the term of its master; later ones are greater."""

    term: int
    number: int


def newest_round(history: Iterable[Timed]) -> RoundOfTerm | None:
    """The last round that has run, 0 if none has; None if no job has begun."""
    newest = None
    for t in history:
        match t.entry:
            case events.JobStarted(term=term):
                newest = RoundOfTerm(term, 0)
            case events.MasterRestarted(term=term):
                newest = RoundOfTerm(term, newest.number if newest else 0)
            case events.RoundRunning(round=number) if newest:
                newest = newest._replace(number=number)
    return newest


def read(job_dir: Path) -> list[Timed]:
    """All entries of a job that can be read; none if it has no events yet."""
    try:
        with (job_dir / files.EVENTS).open(errors="replace") as lines:
            return timed(files.event_entries(lines))
    except FileNotFoundError:
        return []


def timed(contents: Iterable[dict[str, object]]) -> list[Timed]:
    """The entries that are of a known type and have a time."""
    found = ((content.get("time"), events.parse(content)) for content in contents)
    return [
        Timed(float(time), entry)
        for time, entry in found
        if isinstance(time, int | float) and entry is not None
    ]


def loss_of(history: Sequence[Timed], worker_id: str, since: float) -> Loss:
    """What followed since a moment in which something was done to a worker."""
    later = [t for t in history if t.time >= since]
    noticed = [number for number, t in enumerate(later) if _tells_of(t.entry, worker_id)]
    if not noticed:
        return Loss()
    for t in later[noticed[0] :]:
        if isinstance(t.entry, events.RoundRunning) and worker_id not in t.entry.members:
            return Loss(later[noticed[0]].time, t.entry)
    return Loss(later[noticed[0]].time)


def _tells_of(entry: events.AnyEntry, worker_id: str) -> bool:
    """Whether it says that this worker is gone or goes."""
    match entry:
        case events.WorkerExited(worker_id=name, failed=True):
            return name == worker_id
        case events.SlotsRevoked(workers=names):
            return worker_id in names
    return False
