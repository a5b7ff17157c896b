"""Computes how long a host on which workers cannot be started is left alone. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0


@dataclasses.dataclass(frozen=True)
class Failing:
    """A host that has failed `times` times in a row, and is left alone until `until`."""

    times: int
    until: float


@dataclasses.dataclass(frozen=True)
class CoolDowns:
    """The hosts on which workers cannot be started.

    >>> failing = CoolDowns().failed("a", 100.0)
    >>> failing.rests("a", 104.9), failing.rests("a", 105.0)
    (True, False)
    """

    failing: Mapping[str, Failing] = dataclasses.field(default_factory=dict)

    def failed(self, host: str, now: float) -> CoolDowns:
        """Returns the state after a failed start on a host. Each pause is twice as long.

        Failures at the same time, or while the host rests, count once.
        """
        if self.rests(host, now):
            return self
        times = self.failing[host].times + 1 if host in self.failing else 1
        until = now + pause_s(times)
        return CoolDowns({**self.failing, host: Failing(times, until)})

    def works(self, host: str) -> CoolDowns:
        """Returns the state after a worker of the host has come; earlier failures are forgotten."""
        return CoolDowns({h: f for h, f in self.failing.items() if h != host})

    def rests(self, host: str, now: float) -> bool:
        """Returns whether no worker should be started on a host now."""
        return host in self.failing and now < self.failing[host].until


def pause_s(times: int) -> float:
    """Returns how long a host is left alone after this number of failures in a row.

    >>> [pause_s(times) for times in (1, 2, 3, 100)]
    [5.0, 10.0, 20.0, 600.0]
    """
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(times - 1, 30))
