"""The container of a pod: a process with process ids, a hostname and mounts of its own."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.harness.hosts import LIMIT_S, Hosts, number_inside

RUN = Path("/run")
KILLED = 128 + signal.SIGKILL


class Container:
    """A container, running from its construction on.

    Args:
      host: the node.
      hostname: the hostname inside of the container.
      mounts: the directory to mount at each path. If a path is below `RUN`, the container sees
        nothing else there.
      command: the command with its arguments.
      environment: all variables of the container.
      directory: the working directory at the start.
      log: file to which the output is appended.
    """

    def __init__(
        self,
        hosts: Hosts,
        host: str,
        hostname: str,
        *,
        mounts: Mapping[Path, Path],
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        log: Path,
    ) -> None:
        prepared = [f"hostname {shlex.quote(hostname)}"]
        if any(place.is_relative_to(RUN) for place in mounts):
            prepared.append(f"mount -t tmpfs none {RUN}")
        for place, content in mounts.items():
            prepared.append(f"mkdir -p {shlex.quote(str(place))}")
            prepared.append(f"mount --bind {shlex.quote(str(content))} {shlex.quote(str(place))}")
        variables = [f"{name}={value}" for name, value in environment.items()]
        prepared.append(f"exec {shlex.join(['env', '-i', *variables, *command])}")
        isolated = "unshare --mount --uts --pid --fork --kill-child --mount-proc sh -c"
        with log.open("ab") as output:
            self._process = hosts.run(
                host,
                [*isolated.split(), " && ".join(prepared)],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Returns the exit code as Kubernetes reports it; None while the container runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the first process.

        If that process does not handle the signal, only SIGKILL ends it.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                if number_inside(process.pid) == 1:
                    process.send_signal(number)

    def kill(self) -> int:
        """Ends all processes of the container; returns the exit code."""
        ended = self.exit_code()
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(LIMIT_S)
        return KILLED if ended is None else ended
