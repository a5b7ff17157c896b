"""Counts how many seconds a job has spent on each kind of activity."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


class Part(str, enum.Enum):
    """An activity of all workers taken together. Each second belongs to one of these."""

    STARTING = "starting"
    """Workers import and trace; none has trained yet."""
    TRAINING = "training"
    """Rank 0 takes steps; its callbacks, its input and its checkpoints are part of that."""
    EVALUATING = "evaluating"
    RECOMPUTING = "recomputing"
    """Rank 0 takes steps that had been taken before a failure."""
    DETECTING = "detecting"
    """From the last step before a failure until the launcher knew of the failure."""
    RE_FORMING = "re-forming"
    """Until all members of the next round had come; after a failure, this follows `DETECTING`."""
    SYNCING = "syncing"
    """From then until these members were connected and held the same state."""
    WAITING = "waiting"
    """There were fewer workers than --min_workers."""
    FINISHING = "finishing"
    """A training is over; its results are saved."""
    SCRIPT = "script"
    """Workers run the script's own code after a training or between two; with --model, they end."""
    ENDING = "ending"
    """The job stops or is over, and workers leave."""
    DOWN = "down"
    """There was no launcher. It is not known how long there were workers."""


@dataclasses.dataclass(frozen=True)
class Spent:
    """Seconds that each part has taken. Their sum is all time so far."""

    seconds: Mapping[Part, float] = dataclasses.field(default_factory=dict)
    until: float | None = None
    """The time up to which seconds are counted; None before anything has happened."""

    @property
    def total_s(self) -> float:
        """All time so far."""
        return sum(self.seconds.values())

    def up_to(self, now: float, part: Part) -> Spent:
        """Returns a copy in which the time until `now` was spent on `part`."""
        passed_s = 0.0 if self.until is None else max(0.0, now - self.until)
        return Spent(_added(self.seconds, part, passed_s), now)

    def stopped(self) -> Spent:
        """Returns a copy for a clock that has not begun yet."""
        return Spent(self.seconds)

    def moved(self, seconds: float, sources: tuple[Part, ...], to: Part) -> Spent:
        """Returns a copy in which `seconds` of the `sources` were in truth spent on `to`.

        They are taken from the sources in turn, and no more than the sources have.
        """
        parts = dict(self.seconds)
        for source in sources:
            taken = max(0.0, min(seconds, parts.get(source, 0.0)))
            seconds -= taken
            parts = _added(_added(parts, source, -taken), to, taken)
        return Spent(parts, self.until)


def _added(parts: Mapping[Part, float], part: Part, seconds: float) -> dict[Part, float]:
    return {**parts, part: parts.get(part, 0.0) + seconds}


def rounded(spent: Spent) -> dict[str, float]:
    """Returns rounded seconds by name, the largest first, without parts that took no time."""
    found = {part.value: round(seconds, 3) for part, seconds in spent.seconds.items()}
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {name: seconds for name, seconds in ordered if seconds > 0}


def told(seconds: Mapping[str, float]) -> str:
    """Returns the seconds of each part in words.

    >>> told({"training": 75.0, "starting": 24.9, "syncing": 0.1})
    '100.0 s: training 75.0 s (75 %), starting 24.9 s (25 %), syncing 0.1 s (0 %)'
    """
    total_s = sum(seconds.values())
    parts = (f"{name} {s:.1f} s ({s / total_s:.0%})" for name, s in seconds.items() if s >= 0.05)
    return f"{total_s:.1f} s: {', '.join(parts)}".replace("%)", " %)")
