"""Plans: the faults that are to happen to a job, and when. Pure."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Sequence

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.messages import Message

KINDS = {
    "kill": "SIGKILL",
    "terminate": "SIGTERM: a worker leaves, a launcher stops the job",
    "suspend": "SIGSTOP, and SIGCONT after `duration_s`",
    "slow": "stopped for a share of each tenth of a second, for `duration_s`",
    "disk_full": "no file that the process writes may grow, for `duration_s`",
    "network_cut": "the host of a worker does not reach the launcher, for `duration_s`",
}
LASTING = ("suspend", "slow", "disk_full", "network_cut")
"""Kinds that have a duration."""
DRAWN = ("kill", "terminate", "suspend", "slow")
"""Kinds that are drawn at random, unless others are asked for."""
WORKER, LAUNCHER = "worker", "launcher"
PHASES = (
    *("starting", "reading", "waiting", "entering", "training", "evaluating"),
    *("finishing", "done", "ready", "spare", "leaving"),
    *("syncing", "checkpointing"),
)
"""Phases of workers in `ctl status`; and in the last line, parts of `entering` and of any phase."""
DEFAULT_DURATION_S = 5.0
MAX_DURATION_S = 3600.0
SHORTEST_DRAWN_S, LONGEST_DRAWN_S = 1.0, 4.0


class Fault(Message, frozen=True, kw_only=True):
    """A fault. It happens once, as soon as all its conditions hold; at once if it has none."""

    kind: str
    target: str = WORKER
    worker: str = ""
    """The id of the worker."""
    rank: int | None = None
    """The rank of the worker in the round; counted from the end if negative."""
    choice: float = 0.0
    """From 0 to below 1; chooses among all workers in question if none is named."""
    step: int | None = None
    """Condition: the job has come to this step."""
    phase: str = ""
    """Condition: the worker is in this phase."""
    after_s: float = 0.0
    """Condition: this many seconds have passed since the beginning."""
    journal_bytes: int | None = None
    """Condition: the launcher's journal, which each launcher begins anew, is longer than this.

    Faults that wait for the journal happen one after the other.
    """
    min_members: int = 0
    """Condition: at least this many workers train and hold the state."""
    duration_s: float = DEFAULT_DURATION_S
    stopped_share: float = 0.8
    """For "slow": the share of the time in which the process is stopped."""
    address: str = ""
    """For "network_cut": the address of the host; by default, the address that its name has."""

    @property
    def mistake(self) -> str:
        """The mistake in the fault; empty if there is none."""
        wrong = (
            _not_among("kind", self.kind, tuple(KINDS)),
            _not_among("target", self.target, (WORKER, LAUNCHER)),
            _not_among("phase", self.phase, PHASES) if self.phase else "",
            _not_in("choice", self.choice, 0.0, 1.0),
            _not_in("stopped_share", self.stopped_share, 0.0, 1.0),
            _not_in("duration_s", self.duration_s, 0.0, MAX_DURATION_S),
            _not_in("after_s", self.after_s, 0.0, float("inf")),
            _not_in("journal_bytes", self.journal_bytes or 0, 0, float("inf")),
            self._contradiction,
            self._mistake_of_cut,
        )
        return next(filter(None, wrong), "")

    @property
    def _mistake_of_cut(self) -> str:
        if self.kind != "network_cut":
            return f"address was given with {self.kind}, which has none." if self.address else ""
        if self.target == LAUNCHER:
            return "network_cut was given for the launcher, expected a worker on another host."
        if self.address and not _is_ipv4(self.address):
            return f"address {self.address!r} was given, expected one such as 10.0.0.7."
        return ""

    @property
    def _contradiction(self) -> str:
        if self.target == LAUNCHER and (self.worker or self.phase or self.rank is not None):
            return "worker, rank or phase was given for the launcher, expected none of them."
        if self.journal_bytes is not None and self._is_not_for_a_journal:
            return (
                "journal_bytes was given, expected kind kill and target launcher with it, and no "
                "other condition than after_s."
            )
        if self.worker and self.rank is not None:
            return "worker and rank were given, expected one of the two at most."
        return ""

    @property
    def _is_not_for_a_journal(self) -> bool:
        others = self.step is not None or self.min_members > 0
        return others or (self.kind, self.target) != ("kill", LAUNCHER)


class Plan(Message, frozen=True, kw_only=True):
    """The content of `--plan`."""

    examples = (
        '{"faults": [{"kind": "kill", "rank": 0, "step": 100}, '
        '{"kind": "suspend", "worker": "w1", "duration_s": 20, "after_s": 60}]}'
    )

    faults: tuple[Fault, ...]

    def check(self) -> None:
        """Raises `ConfigurationError` if there is no fault, or one that cannot be done."""
        if not self.faults:
            raise ConfigurationError(f"No fault was given, expected some, as in {self.examples}.")
        for number, fault in enumerate(self.faults, 1):
            if fault.mistake:
                raise ConfigurationError(f"Fault {number}: {fault.mistake}")


def drawn(seed: int, count: int, every_s: float, kinds: Sequence[str]) -> Plan:
    """Returns a plan of random faults at random moments; the same plan for the same arguments.

    The faults happen to members of a round, and leave at least one member.

    Args:
      count: number of faults.
      every_s: seconds between two faults, on average.
      kinds: the kinds to draw from.
    """
    draw = random.Random(seed)
    faults, after_s = [], 0.0
    for _ in range(count):
        after_s += every_s * draw.uniform(0.5, 1.5)
        faults.append(
            Fault(
                kind=draw.choice(list(kinds)),
                choice=draw.random(),
                after_s=round(after_s, 3),
                min_members=2,
                duration_s=round(draw.uniform(SHORTEST_DRAWN_S, LONGEST_DRAWN_S), 3),
            )
        )
    return Plan(faults=tuple(faults))


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _not_among(name: str, value: str, known: Sequence[str]) -> str:
    if value in known:
        return ""
    return f"{name} {value!r} was given, expected one of {', '.join(known)}."


def _not_in(name: str, value: float, least: float, limit: float) -> str:
    if least <= value < limit:
        return ""
    return f"{name} {value:g} was given, expected at least {least:g} and below {limit:g}."
