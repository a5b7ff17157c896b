"""Finds the hosts that a job may use now: from the command line, a file, or a script."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.hosts import Hosts, hosts_of_file, hosts_of_lines

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
