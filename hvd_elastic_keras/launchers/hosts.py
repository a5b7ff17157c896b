"""Finds the hosts that a job may use now, and how many workers each may have.

| where                      | form                                                             |
|----------------------------|------------------------------------------------------------------|
| `--hosts`                  | `a:2,b:4`, as for horovodrun                                     |
| `--hostfile`               | a line per host: `a slots=2` (horovodrun, Open MPI), `a:2`, `a`  |
| `--host_discovery_script`  | a line per host: `a:2` or `a`, as for horovodrun                 |

A host without a number has 1 slot. A host named several times has the sum, as with Open MPI.

`CoolDowns` computes how long a host on which workers cannot be started is left alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

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


SCRIPT_LIMIT_S = 30.0
"""Seconds that a discovery script may take."""
LAST_LINES = 3


class Discovery(Protocol):
    """Finds the hosts of a job. It may be asked repeatedly, but by only one thread at a time."""

    def hosts(self) -> Hosts:
        """Returns the present slots by host.

        Raises:
          ConfigurationError: the hosts cannot be found out at present.
        """

    def close(self) -> None:
        """Ends a question that is under way. Called from another thread, when the job is over."""


class FixedHosts:
    """Hosts that never change."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def hosts(self) -> Hosts:
        """Returns the slots by host."""
        return self._hosts

    def close(self) -> None:
        """Does nothing: no question is under way."""


class HostFile:
    """Hosts from a file, which is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, ...] = ()
        self._hosts: Hosts = {}

    def hosts(self) -> Hosts:
        """Returns the slots by host. See `Discovery.hosts`."""
        try:
            found = self._path.stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._read:
                self._hosts = hosts_of_file(self._path.read_text(), str(self._path))
                self._read = version
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--hostfile={self._path} cannot be read: {error}.") from error
        return self._hosts

    def close(self) -> None:
        """Does nothing: no question is under way."""


class HostScript:
    """Hosts that a command prints, as for `horovodrun --host-discovery-script`."""

    def __init__(self, command: str, limit_s: float = SCRIPT_LIMIT_S) -> None:
        self._command = command
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._closed = False

    def hosts(self) -> Hosts:
        """Runs the command and returns the slots by host. See `Discovery.hosts`."""
        process = self._start()
        try:
            output, errors = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            self._end()
            process.communicate()
            raise self._failed(f"has not ended within {self._limit_s:g} s") from None
        finally:
            with self._lock:
                self._running = None
        if process.returncode:
            told = "; ".join(errors.strip().splitlines()[-LAST_LINES:])
            raise self._failed(f"failed with exit code {process.returncode}: {told}")
        return hosts_of_lines(output, f"what {self._command} printed")

    def close(self) -> None:
        """Ends the command if it runs, and prevents further runs."""
        self._closed = True
        self._end()

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise self._failed("is not asked any more")
            self._running = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                text=True,
                errors="replace",
            )
            return self._running

    def _end(self) -> None:
        """Kills the command and all processes of its group."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._running:
                os.killpg(self._running.pid, signal.SIGKILL)

    def _failed(self, how: str) -> ConfigurationError:
        return ConfigurationError(f"--host_discovery_script={self._command} {how}")


class LastKnownHosts:
    """Asks another discovery. While that fails, it keeps the last hosts and warns once."""

    def __init__(self, discovery: Discovery, known: Hosts, warn: Callable[[str], None]) -> None:
        self._discovery = discovery
        self._known = known
        self._warn = warn
        self._warned = False

    def hosts(self) -> Hosts:
        """Returns the last known slots by host."""
        try:
            self._known = self._discovery.hosts()
        except (ConfigurationError, OSError) as error:
            if not self._warned:
                self._warn(f"{error}; the hosts stay what they were")
            self._warned = True
        else:
            self._warned = False
        return self._known

    def close(self) -> None:
        """Ends a question that is under way, without a warning."""
        self._warned = True
        self._discovery.close()
