"""How a job has changed, by its `events.jsonl`: the cost of each change, and the story for people.

`explain` tells the story: which workers, why, how long each part took.
"""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hvd_elastic_keras.common import events, files, goodput
from hvd_elastic_keras.observe.console import counted

END_BYTES = 2**16
"""Bytes at the end of a job's events in which its last entries are searched."""


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


def end_of(job_dir: Path) -> events.JobFinished | None:
    """Returns how a job has ended; None if it runs, or its launcher did not come to write that."""
    lines = files.end_of(job_dir / files.EVENTS, END_BYTES).splitlines()
    entries = [found.entry for found in timed(files.event_entries(lines))]
    last = entries[-1] if entries else None
    return last if isinstance(last, events.JobFinished) else None


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


@dataclasses.dataclass(frozen=True)
class Change:
    """A round that took the place of another one.

    Attributes:
      running: the entry of the new round.
      size_before: number of members of the old round.
      after: entries written between the entries of the two rounds.
    """

    running: events.RoundRunning
    size_before: int
    after: tuple[events.AnyEntry, ...]

    @property
    def lost(self) -> list[events.WorkerExited]:
        """Workers that have failed."""
        return [e for e in self.after if isinstance(e, events.WorkerExited) and e.failed]


def explain(history: Sequence[Timed]) -> Iterator[str]:
    """Yields lines about each run of a job; the last lines of a run sum it up."""
    for run in runs(history):
        yield from _story(run)
        yield from _summary(run)


def runs(history: Iterable[Timed]) -> list[list[Timed]]:
    """Splits entries into runs, each from one `job_started` to the next."""
    found: list[list[Timed]] = []
    for t in history:
        if isinstance(t.entry, events.JobStarted) or not found:
            found.append([])
        found[-1].append(t)
    return found


def changes(entries: Iterable[events.AnyEntry]) -> list[Change]:
    """Returns a change for each round except the first round of a training."""
    found: list[Change] = []
    before: events.RoundRunning | None = None
    after: list[events.AnyEntry] = []
    for entry in entries:
        if not isinstance(entry, events.RoundRunning):
            after.append(entry)
            continue
        if before and before.training == entry.training:
            found.append(Change(entry, before.world_size, tuple(after)))
        before, after = entry, []
    return found


# --- line by line ------------------------------------------------------------------------


def _story(run: Sequence[Timed]) -> Iterator[str]:
    began = run[0].time
    day = datetime.datetime.fromtimestamp(began).strftime("%Y-%m-%d %H:%M:%S")
    yield f"{day}: {_beginning(run[0].entry)}"
    by_round = {c.running.round: c for c in changes(t.entry for t in run)}
    for t in run[1:]:
        change = by_round.get(t.entry.round) if isinstance(t.entry, events.RoundRunning) else None
        for number, line in enumerate(lines(t.entry, change)):
            yield f"{'' if number else _clock(t.time - began):>10}  {line}"


def _beginning(entry: events.AnyEntry) -> str:
    if isinstance(entry, events.JobStarted):
        return f"the job starts ({entry.model}, {counted(entry.num_workers, 'worker')})"
    return "the beginning is missing"


def lines(entry: events.Entry, change: Change | None) -> list[str]:
    """Returns the lines that tell of an entry; none for most entries.

    Args:
      change: the change that the entry completes, if any.
    """
    match entry:
        case events.RoundRunning():
            return _round_lines(entry, change)
        case events.WorkerExited(failed=True):
            return [f"{entry.worker_id} {entry.cause}, at step {entry.step}"]
        case events.WorkerReady(start_up_s=float() as start_up_s):
            return [f"{entry.worker_id} is warm, {start_up_s:.1f} s after its launch"]
        case events.WorkerStalled():
            return [f"{entry.worker_id} does not go on at step {entry.step}"]
        case events.SlotsRevoked():
            return [f"{counted(entry.slots, 'slot')} of {entry.host} taken back: {entry.reason}"]
        case events.SlotsGranted():
            return [f"{counted(entry.slots, 'slot')} of {entry.host} granted"]
        case events.Waiting():
            return [f"too few workers: {entry.workers} of at least {entry.min_workers}"]
        case events.MasterRestarted():
            return [f"the launcher is back; taken over: {', '.join(entry.workers) or 'nobody'}"]
        case events.CheckpointLoaded():
            return [f"training goes on from the checkpoint of step {entry.step}"]
        case events.WorkerRefused():
            return [f"{entry.worker_id} cannot take part: {entry.message}"]
        case events.JobStopping():
            return [f"the job is asked to stop: {entry.reason}"]
        case events.JobFinished():
            end = f"the job ends at step {entry.step}: {entry.status} ({entry.reason})"
            return [end, f"  of {goodput.told(entry.spent_s)}"] if entry.spent_s else [end]
    return []


def _round_lines(entry: events.RoundRunning, change: Change | None) -> list[str]:
    members = ", ".join(entry.members)
    size = counted(entry.world_size, "worker")
    if change is None:
        return [f"round {entry.round}: {size} ({members}) from step {entry.step}: {entry.reason}"]
    return [
        f"round {entry.round}: {change.size_before} → {size} ({members}) from step {entry.step}: "
        f"{entry.reason}",
        f"  stalled {entry.stall_s:.2f} s: {_parts(entry)}; {_lost(entry.steps_lost)}",
    ]


def _parts(entry: events.RoundRunning) -> str:
    noticed = f"{entry.noticed_s:.2f} s until it was noticed, " if entry.noticed_s else ""
    return (
        f"{noticed}{entry.entered_s:.2f} s until all had come, "
        f"{entry.synced_s:.2f} s until all were connected and in sync"
    )


def _lost(steps: int) -> str:
    return f"{counted(steps, 'step')} repeated" if steps else "no step repeated"


def _clock(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds.

    >>> _clock(3725.25)
    '1:02:05.2'
    """
    minutes, rest = divmod(max(0.0, seconds), 60)
    return f"{int(minutes // 60)}:{int(minutes % 60):02d}:{rest:04.1f}"


# --- in short ----------------------------------------------------------------------------


def _summary(run: Sequence[Timed]) -> Iterator[str]:
    entries = [t.entry for t in run]
    found = changes(entries)
    took = _clock(run[-1].time - run[0].time)
    if not found:
        yield f"no change of the workers in {took}"
        return
    stalls = [c.running.stall_s for c in found]
    worst = max(found, key=lambda c: c.running.stall_s).running
    failures = [e for e in entries if isinstance(e, events.WorkerExited) and e.failed]
    yield (
        f"{counted(len(found), 'change')} and {counted(len(failures), 'failure')} in {took}; "
        f"{_lost(sum(c.running.steps_lost for c in found))}"
    )
    yield (
        f"stalled {sum(stalls):.2f} s in all, {statistics.median(stalls):.2f} s in the median, "
        f"{worst.stall_s:.2f} s at worst (round {worst.round}: {worst.reason})"
    )
