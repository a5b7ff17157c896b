"""The command that starts a worker by ssh, and the likely reason if no worker starts. Pure.

A command line holds nothing secret: token and environment go through standard input to `ssh_end` on
the other host.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

import msgspec

OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
"""Options that follow the user's own, because ssh takes the first value of an option."""
REMOTE_END = "hvd_elastic_keras.launchers.ssh_end"
SSH_FAILED = 255
NOT_EXECUTABLE, NOT_FOUND = 126, 127
SAID_LINES = 3


@dataclasses.dataclass(frozen=True)
class SshSettings:
    """Settings for the start of workers on other hosts.

    Attributes:
      ssh: the ssh client with the user's options.
      python: the Python interpreter on the other host.
      directory: directory on the other host in which workers start.
      python_path: PYTHONPATH on the other host; empty keeps the value there.
      variables: further environment variables of the workers.
    """

    ssh: tuple[str, ...]
    python: str
    directory: str
    python_path: str = ""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    def command(self, host: str) -> list[str]:
        """Returns the command to run here; its standard input must be a `RemoteStart`."""
        return [*self.ssh, *OPTIONS, "--", host, self.remote_command]

    def question(self, host: str) -> list[str]:
        """Returns the command that prints the user's ssh configuration for a host."""
        return [*self.ssh, "-G", "--", host]

    @property
    def remote_command(self) -> str:
        """The command for the shell of the other host.

        >>> SshSettings(("ssh",), "python3", "/my code").remote_command
        "cd '/my code' && exec python3 -m hvd_elastic_keras.launchers.ssh_end"
        """
        path = f"env PYTHONPATH={shlex.quote(self.python_path)} " if self.python_path else ""
        python = shlex.quote(self.python)
        return f"cd {shlex.quote(self.directory)} && exec {path}{python} -m {REMOTE_END}"


@dataclasses.dataclass(frozen=True)
class Target:
    """The address to which ssh connects for a host.

    Attributes:
      name: a name that has an address, or the address itself.
      by_others: whether another host or program makes the connection. It may know a name that this
        host does not know.
    """

    name: str
    by_others: bool = False


def target_of(answer: str, host: str) -> Target:
    """Returns the target of a host in the answer of `ssh -G`; without an answer, the host itself.

    >>> target_of("user me\\nhostname 10.0.0.7\\nproxyjump gate", "alias")
    Target(name='10.0.0.7', by_others=True)
    >>> target_of("", "me@node1")
    Target(name='node1', by_others=False)
    """
    settings = dict(line.split(" ", 1) for line in answer.splitlines() if " " in line)
    proxies = (settings.get(name, "none") for name in ("proxyjump", "proxycommand"))
    name = settings.get("hostname") or host.rpartition("@")[2]
    return Target(name, any(proxy != "none" for proxy in proxies))


class RemoteStart(msgspec.Struct, frozen=True):
    """The start of a worker, sent to the other host on standard input in one line."""

    arguments: list[str]
    """Arguments of `python -m hvd_elastic_keras.run`, which reads `token` on standard input."""
    token: str
    variables: dict[str, str]


def failure(settings: SshSettings, host: str, code: int | None, said: str) -> str:
    """Returns why no worker came from a host: likely reason, command, and output of the host."""
    lines = [line.strip() for line in said.splitlines() if line.strip()][-SAID_LINES:]
    ran = shlex.join([*settings.ssh, host, settings.remote_command])
    what = f"it said: {' / '.join(lines)}" if lines else f"it ended with exit code {code}"
    return f"{host}: {_reason(settings, host, code, said)} (ran {ran}; {what})"


def _reason(settings: SshSettings, host: str, code: int | None, said: str) -> str:
    if code == SSH_FAILED:
        return _connection_problem(settings.ssh, host, said)
    if f"cd: {settings.directory}" in said or f"cd to {settings.directory}" in said:
        return f"there is no directory {settings.directory} on it; name another with --remote_dir"
    if code in (NOT_FOUND, NOT_EXECUTABLE):
        return f"there is no {settings.python} on it; name its interpreter with --ssh_python"
    if "No module named" in said:
        return (
            f"{settings.python} on it lacks this package; install it there, or name another "
            "interpreter with --ssh_python"
        )
    return "the worker has ended before it joined"


def _connection_problem(ssh: Sequence[str], host: str, said: str) -> str:
    by_hand = shlex.join([*ssh, host])
    if "Host key verification failed" in said:
        return f"its host key is not known, or has changed; connect once by hand: {by_hand}"
    if "Permission denied" in said:
        return f"it does not let this user in without a password; set up a key, and try {by_hand}"
    if "Could not resolve hostname" in said:
        return "there is no such host"
    return f"ssh does not reach it; try {by_hand}"
