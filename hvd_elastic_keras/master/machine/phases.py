"""Phases of the job and of its rounds: types that carry what is known in that phase. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.machine.reasons import Reason

# --- the job -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Active:
    """The job keeps workers running. They train, or are about to."""


@dataclasses.dataclass(frozen=True)
class Stopping:
    """The workers leave after the current step, because somebody asked for it."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """All is decided; workers that still call are sent away."""

    reason: str


JobPhase = Active | Stopping | Ended


# --- a round -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Waiting:
    """No round runs, and none is put together."""


@dataclasses.dataclass(frozen=True)
class Running:
    """The members train."""

    number: int
    members: tuple[str, ...]
    """Worker ids by rank."""
    since: float = 0.0


@dataclasses.dataclass(frozen=True)
class Stall:
    """The time without steps, from the last one in the old round to the first one in the new."""

    since: float
    """When the last step was taken, as far as it is known."""
    noticed_at: float | None = None
    """When it was known that the old round is broken; None if the change is planned."""
    ran_since: float = 0.0
    """When the old round began to run."""

    def begun(self, at: float) -> Stall:
        """Returns the stall, begun earlier if a worker took its last step `at` an earlier time."""
        return dataclasses.replace(self, since=min(self.since, max(self.ran_since, at)))

    def parts(self, assigned_at: float, now: float) -> tuple[float, float, float]:
        """Returns the seconds until the stall was noticed, all members had come, and all ran."""
        noticed_at = self.since if self.noticed_at is None else self.noticed_at
        return noticed_at - self.since, assigned_at - noticed_at, now - assigned_at


@dataclasses.dataclass(frozen=True)
class Entering:
    """The `called` workers are awaited at the entrance of the next round."""

    number: int
    reasons: tuple[Reason, ...]
    opened_at: float
    called: frozenset[str]
    size_before: int
    """Members of the round before; 0 if there was none."""
    still_running: Running | None = None
    """The round before, as long as its members train on; None if it is broken."""
    stall: Stall | None = None
    """None while training goes on."""
    first_entry_at: float | None = None
    """When the first worker came. If the round before still runs, only its members count."""


@dataclasses.dataclass(frozen=True)
class Confirming:
    """The members have their places and tell one by one that they run."""

    number: int
    reasons: tuple[Reason, ...]
    size_before: int
    stall: Stall
    members: tuple[str, ...]
    """Worker ids by rank."""
    places: Mapping[str, protocol.Assignment]
    assigned_at: float
    confirmed: frozenset[str] = frozenset()
    root_step: int = 0


RoundPhase = Waiting | Entering | Confirming | Running
