"""Parses which hosts a job may use, and how many workers each may have. Pure.

| where                      | form                                                             |
|----------------------------|------------------------------------------------------------------|
| `--hosts`                  | `a:2,b:4`, as for horovodrun                                     |
| `--hostfile`               | a line per host: `a slots=2` (horovodrun, Open MPI), `a:2`, `a`  |
| `--host_discovery_script`  | a line per host: `a:2` or `a`, as for horovodrun                 |

A host without a number has 1 slot. A host named several times has the sum, as with Open MPI.

`CoolDowns` computes how long a host on which workers cannot be started is left alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from hvd_elastic_keras.common.errors import ConfigurationError

Hosts = dict[str, int]
"""Slots by host, in the order of the input."""
# No name may begin with a hyphen, because ssh would take it for an option.
_HOST = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9_.@-]*)"
_ENTRY = re.compile(rf"{_HOST}(?::(?P<slots>\d{{1,6}}))?")
_WITH_OPTIONS = re.compile(rf"{_HOST}(?P<options>(?:\s+[a-z_-]+\s*=\s*\d{{1,6}})+)")
_SLOTS = re.compile(r"(?<![a-z_-])slots\s*=\s*(\d+)")

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0


def hosts_of_flag(text: str) -> Hosts:
    """Parses the text of `--hosts`.

    >>> hosts_of_flag("a:2,b")
    {'a': 2, 'b': 1}

    Raises:
      ConfigurationError: the text is malformed, or there is no slot at all.
    """
    return _with_a_slot(_sum(_entry(p.strip(), "--hosts") for p in text.split(",")), "--hosts")


def hosts_of_lines(text: str, name: str) -> Hosts:
    """Parses the lines of a file or of a discovery script; `name` is the name of the source.

    >>> hosts_of_lines("a slots=2 max_slots=4  # rack 1", "hosts.txt")
    {'a': 2}

    Raises:
      ConfigurationError: the text is malformed.
    """
    lines = enumerate((line.partition("#")[0].strip() for line in text.splitlines()), 1)
    return _sum(_entry(line, f"line {number} of {name}") for number, line in lines if line)


def hosts_of_file(text: str, name: str) -> Hosts:
    """Parses the text of a `--hostfile`.

    Raises:
      ConfigurationError: the text is malformed, or there is no slot at all.
    """
    return _with_a_slot(hosts_of_lines(text, name), name)


def _entry(text: str, where: str) -> tuple[str, int]:
    if found := _ENTRY.fullmatch(text):
        return found["host"].strip("[]"), int(found["slots"] or 1)
    if found := _WITH_OPTIONS.fullmatch(text):
        slots = _SLOTS.search(found["options"])
        return found["host"].strip("[]"), int(slots[1]) if slots else 1
    raise ConfigurationError(
        f"{where} has {text!r}, expected a host with its number of workers, such as node1:4 or, in "
        "a file, node1 slots=4."
    )


def _sum(entries: Iterable[tuple[str, int]]) -> Hosts:
    hosts: Hosts = {}
    for host, slots in entries:
        hosts[host] = hosts.get(host, 0) + slots
    return hosts


def _with_a_slot(hosts: Hosts, where: str) -> Hosts:
    if any(hosts.values()):
        return hosts
    raise ConfigurationError(
        f"{where} has no host with a slot. Give at least one, such as node1:4."
    )


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
