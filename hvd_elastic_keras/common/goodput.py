"""What a job has spent its time on."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


class Part(str, enum.Enum):
    """What the workers, taken together, did. A second belongs to one of these."""

    STARTING = "starting"
    """Workers import and trace; none has trained yet."""
    TRAINING = "training"
    """Rank 0 takes steps; its callbacks, its input and its checkpoints are part of that."""
    EVALUATING = "evaluating"
    RECOMPUTING = "recomputing"
    """Rank 0 takes steps that had been taken before a failure."""
    DETECTING = "detecting"
    """Since the last step before a failure, until the launcher knew of it."""
    RE_FORMING = "re-forming"
    """Until all members of the next round had come."""
    SYNCING = "syncing"
    """Until these were connected and held the same state."""
    WAITING = "waiting"
    """There were fewer workers than --min_workers."""
    FINISHING = "finishing"
    """Results are saved, and the script goes on after its training or between two."""
    ENDING = "ending"
    """The job stops or is over, and workers leave."""
    DOWN = "down"
    """There was no launcher, and it is not known until when there were workers."""


@dataclasses.dataclass(frozen=True)
class Spent:
    """Seconds that each part has taken. Their sum is all time so far."""

    seconds: Mapping[Part, float] = dataclasses.field(default_factory=dict)
    until: float | None = None
    """Up to when; None before anything has happened."""

    @property
    def total_s(self) -> float:
        """All time so far."""
        return sum(self.seconds.values())

    def up_to(self, now: float, part: Part) -> Spent:
        """The same, with the time until now spent on one part."""
        passed_s = 0.0 if self.until is None else max(0.0, now - self.until)
        return Spent(_added(self.seconds, part, passed_s), now)

    def stopped(self) -> Spent:
        """The same, for a clock that has not begun yet."""
        return Spent(self.seconds)

    def moved(self, seconds: float, sources: tuple[Part, ...], to: Part) -> Spent:
        """The same, where that much had in truth been spent on `to`: taken from `sources` in turn.

        No more than they have.
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
    """By name, the largest first; without what has taken no time."""
    found = {part.value: round(seconds, 3) for part, seconds in spent.seconds.items()}
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {name: seconds for name, seconds in ordered if seconds > 0}


def told(seconds: Mapping[str, float]) -> str:
    """In words.

    >>> told({"training": 75.0, "starting": 24.9, "syncing": 0.1})
    '100.0 s: training 75.0 s (75 %), starting 24.9 s (25 %), syncing 0.1 s (0 %)'
    """
    total_s = sum(seconds.values())
    parts = (f"{name} {s:.1f} s ({s / total_s:.0%})" for name, s in seconds.items() if s >= 0.05)
    return f"{total_s:.1f} s: {', '.join(parts)}".replace("%)", " %)")
