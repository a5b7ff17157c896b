"""The course of a job in numbers and short texts, as its dashboard, report and metrics show it.

The course is made from the job's entries, including entries of earlier launchers. It takes no more
room than a page can draw: a long curve loses every second point, and the oldest changes are
dropped.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_elastic_keras.common import events
from hvd_elastic_keras.observe import job_history

MOST_POINTS = 4000
MOST_CHANGES = 1000
Item = dict[str, Any]
"""A point or a change, as pages get it; `n` is the version of the course that added it."""


@dataclasses.dataclass
class Totals:
    """Totals of everything that has happened in a job so far."""

    rounds: int = 0
    failures: int = 0
    evictions: int = 0
    steps_lost: int = 0
    stall_s: float = 0.0

    def add(self, entry: events.Entry) -> None:
        """Counts an entry."""
        if isinstance(entry, events.RoundRunning):
            self.rounds += 1
            self.steps_lost += entry.steps_lost
            self.stall_s += entry.stall_s
        elif isinstance(entry, events.WorkerExited):
            self.failures += entry.failed
            self.evictions += entry.evicted


class Curve:
    """Points in the order of time, never more than `MOST_POINTS`."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def add(self, item: Item) -> None:
        """Appends a point."""
        self.items.append(item)
        if len(self.items) > MOST_POINTS:
            self.items = self.items[::2]

    def since(self, version: int) -> list[Item]:
        """Returns the points that were added after that version."""
        new = 0
        for item in reversed(self.items):
            if item["n"] <= version:
                break
            new += 1
        return self.items[len(self.items) - new :]


class JobCourse:
    """Collects the course of one job from its entries.

    Attributes:
      version: grows by 1 with each entry.
      newest: the newest `steps_taken` entry, which rank 0 has sent.
      shares: micro-batches per step, by worker id.
      started: the newest start of the job.
      on_news: a function that is called whenever `version` has grown.
    """

    def __init__(self) -> None:
        self.version = 0
        self.totals = Totals()
        self.newest: events.StepsTaken | None = None
        self.started: events.JobStarted | None = None
        self.finished: events.JobFinished | None = None
        self.shares: dict[str, int] = {}
        self.on_news: Callable[[], None] = lambda: None
        self._running: events.RoundRunning | None = None
        self._curves = {"steps": Curve(), "epochs": Curve(), "sizes": Curve()}
        self._changes: deque[Item] = deque(maxlen=MOST_CHANGES)

    @classmethod
    def of(cls, job_dir: Path) -> JobCourse:
        """Returns the course from the entries in a job directory; empty if there are none."""
        course = cls()
        for timed in job_history.read(job_dir):
            course.hear(timed.time, timed.entry)
        return course

    def hear(self, time_s: float, entry: events.Entry) -> None:
        """Takes an entry and the time when it was written (seconds since 1970)."""
        self.version += 1
        self.totals.add(entry)
        self._add_change(time_s, entry)
        match entry:
            case events.JobStarted():
                self.started, self.finished = entry, None
                self._add_size(time_s, 0)
            case events.StepsTaken():
                self._add_steps(time_s, entry)
            case events.EpochEnd():
                values = numbers(entry.metrics)
                self._add("epochs", time_s, epoch=entry.epoch, step=entry.step, values=values)
            case events.RoundRunning():
                self._running = entry
                self._take_shares(entry.micro_batches)
                self._add_size(time_s, entry.world_size)
            case events.SharesBalanced():
                self._take_shares(entry.micro_batches)
            case events.JobFinished():
                self.finished = entry
                self._add_size(time_s, 0)
        self.on_news()

    def since(self, version: int) -> dict[str, list[Item]]:
        """Returns the points that were added after that version, by curve, and the changes."""
        found = {name: curve.since(version) for name, curve in self._curves.items()}
        return {**found, "changes": [c for c in self._changes if c["n"] > version]}

    def _add(self, curve: str, time_s: float, **values: Any) -> None:
        self._curves[curve].add({"n": self.version, "time": time_s, **values})

    def _add_steps(self, time_s: float, entry: events.StepsTaken) -> None:
        self.newest = entry
        self._add(
            "steps",
            time_s,
            training=entry.training,
            step=entry.step,
            unit=entry.unit or "step",
            values=entry.metrics,
            examples_per_s=entry.examples_per_s,
            step_s=entry.step_s,
        )

    def _add_size(self, time_s: float, size: int) -> None:
        self._add("sizes", time_s, size=size)

    def _take_shares(self, micro_batches: list[int]) -> None:
        members = self._running.members if self._running else []
        self.shares = dict(zip(members, micro_batches, strict=False))

    def _add_change(self, time_s: float, entry: events.Entry) -> None:
        change = change_of(entry, self._running)
        lines = job_history.lines(entry, change)
        if not lines:
            return
        item = {"n": self.version, "time": time_s, "kind": events.name_of(type(entry))}
        item |= {"text": lines[0], "more": lines[1:]}
        if isinstance(entry, events.RoundRunning):
            before = change.size_before if change else None
            item |= {"size_before": before, "round": events.fields_of(entry)}
        self._changes.append(item)


def change_of(entry: events.Entry, before: events.RoundRunning | None) -> job_history.Change | None:
    """Returns the change from the round `before` to the round of `entry`.

    Returns None if `entry` is no round, or if there is no earlier round of its training.
    """
    if not isinstance(entry, events.RoundRunning) or before is None:
        return None
    if before.training != entry.training:
        return None
    return job_history.Change(entry, before.world_size, ())


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Returns the metrics of an epoch that a curve can show."""
    return {n: v for n, v in metrics.items() if isinstance(v, int | float)}
