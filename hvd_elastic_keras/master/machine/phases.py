"""Phases of the job and of its rounds: types that carry what is known in that phase. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.master.machine.reasons import Reason
from hvd_elastic_keras.master.machine.value import Observed, Value

# --- the job -----------------------------------------------------------------------------


class Active(Value, frozen=True, tag=True):
    """The job keeps workers running. They train, or are about to."""


class Stopping(Value, frozen=True, tag=True):
    """The workers leave after the current step, because somebody asked for it."""

    reason: str


class Ended(Value, frozen=True, tag=True):
    """All is decided; workers that still call are sent away."""

    reason: str


JobPhase = Active | Stopping | Ended


# --- a round -----------------------------------------------------------------------------


class Waiting(Value, frozen=True, tag=True):
    """No round runs, and none is put together."""


class Running(Value, frozen=True, tag=True):
    """The members train."""

    number: int
    members: tuple[str, ...]
    """Worker ids by rank."""
    since: Observed[float] = 0.0


class Stall(Value, frozen=True):
    """The time without steps, from the last one in the old round to the first one in the new."""

    since: float
    """When the last step was taken, as far as it is known."""
    noticed_at: float | None = None
    """When it was known that the old round is broken; None if the change is planned."""
    ran_since: float = 0.0
    """When the old round began to run."""

    def begun(self, at: float) -> Stall:
        """Returns the stall, begun earlier if a worker took its last step `at` an earlier time."""
        return replace(self, since=min(self.since, max(self.ran_since, at)))

    def parts(self, assigned_at: float, now: float) -> tuple[float, float, float]:
        """Returns the seconds until the stall was noticed, all members had come, and all ran."""
        noticed_at = self.since if self.noticed_at is None else self.noticed_at
        return noticed_at - self.since, assigned_at - noticed_at, now - assigned_at


class Entering(Value, frozen=True, tag=True):
    """The `called` workers are awaited at the entrance of the next round."""

    number: int
    reasons: tuple[Reason, ...]
    called: frozenset[str]
    size_before: int
    """Members of the round before; 0 if there was none."""
    still_running: Running | None = None
    """The round before, as long as its members train on; None if it is broken."""
    opened_at: Observed[float] = 0.0
    stall: Observed[Stall | None] = None
    """None while training goes on."""
    first_entry_at: Observed[float | None] = None
    """When the first worker came. If the round before still runs, only its members count."""


class Confirming(Value, frozen=True, tag=True):
    """The members have their places and tell one by one that they run."""

    number: int
    size_before: int
    members: tuple[str, ...]
    """Worker ids by rank."""
    reasons: Observed[tuple[Reason, ...]] = ()
    stall: Observed[Stall] = Stall(0.0)
    places: Observed[Mapping[str, protocol.Assignment]] = msgspec.field(default_factory=dict)
    assigned_at: Observed[float] = 0.0
    confirmed: Observed[frozenset[str]] = frozenset()
    root_step: Observed[int] = 0


RoundPhase = Waiting | Entering | Confirming | Running
