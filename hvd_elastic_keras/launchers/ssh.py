"""Workers on other hosts, started with the user's own OpenSSH client.

On the other host a joiner (`run --join`) looks after the worker, and tells the master of its end.
The connection only starts the joiner and brings its output: if the connection is lost, the worker
trains on. On this host, each ssh client has a keeper, like a local worker, so that the client
outlives the launcher.

A command line holds nothing secret: token and environment go through standard input to `ssh_end` on
the other host.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from hvd_elastic_keras.common import files
from hvd_elastic_keras.launchers.base import LOCALHOST, LaunchedWorker, WorkerExit
from hvd_elastic_keras.launchers.local import LocalLauncher
from hvd_elastic_keras.settings import env

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


WITH_INPUT = ("/bin/sh", "-c", 'exec "$@" < "$0"')
"""Runs a command with a file as its standard input; the file is the first argument."""
MOST_LOG_BYTES = 20_000


class SshLauncher:
    """Starts joiners on other hosts; output goes to `log_dir/<worker id>.log`.

    Args:
      record_dir: directory for notes about the running clients; removed when the job is over.
      environment: returns the environment of the client of a worker.
      start: returns the `RemoteStart` of a worker on a host.
      has_come: returns whether the master has heard of a worker, or does not wait for it any more.
      on_failed: called in the event loop with worker id, host and reason, if the connection of a
        worker ends before the worker has come. This launcher never calls `on_exit`, because joiners
        report the end of a worker to the master.
    """

    def __init__(
        self,
        settings: SshSettings,
        log_dir: Path,
        record_dir: Path,
        *,
        environment: Callable[[str], env.WorkerEnvironment],
        start: Callable[[str, str], RemoteStart],
        on_output: Callable[[str, str], None],
        has_come: Callable[[str], bool],
        on_failed: Callable[[str, str, str], None],
    ) -> None:
        self._settings = settings
        self._log_dir = log_dir
        self._record_dir = record_dir
        self._start = start
        self._has_come = has_come
        self._on_failed = on_failed
        self._hosts: dict[str, str] = {}
        self._adopted: set[str] = set()
        self._clients = LocalLauncher(
            self._command,
            log_dir,
            record_dir,
            environment,
            on_output,
            variables=env.worker_variables(1, keeps_threads=False),
        )

    def launch(
        self, worker_id: str, host: str, on_exit: Callable[[WorkerExit], None]
    ) -> LaunchedWorker:
        """Starts a worker on a host. The returned process id belongs to the client on this host."""
        self._hosts[worker_id] = host
        for directory in (self._record_dir.parent, self._record_dir):
            directory.mkdir(mode=0o700, exist_ok=True)
        self._write_start(worker_id)
        client = self._clients.launch(worker_id, LOCALHOST, self._ended)
        return LaunchedWorker(host, client.pid)

    def adopt(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> LaunchedWorker | None:
        """Looks after the client of an earlier launcher. See `Launcher.adopt`."""
        try:
            self._hosts[worker_id] = self._host_file(worker_id).read_text()
        except OSError:
            return None
        self._adopted.add(worker_id)
        client = self._clients.adopt(worker_id, self._ended)
        return LaunchedWorker(self._hosts[worker_id], client.pid) if client else None

    def kill(self, worker_id: str) -> None:
        """Ends the client. The joiner hears that the job has given up its worker, and ends it."""
        self._clients.kill(worker_id)

    def running(self) -> list[str]:
        """Returns the ids of the workers whose clients have not ended."""
        return self._clients.running()

    def close(self) -> None:
        """Removes the notes about the clients, because the job is over."""
        self._clients.close()

    def _command(self, worker_id: str) -> list[str]:
        start = str(self._start_file(worker_id))
        return [*WITH_INPUT, start, *self._settings.command(self._hosts[worker_id])]

    def _write_start(self, worker_id: str) -> None:
        host = self._hosts[worker_id]
        files.write_secret(self._host_file(worker_id), host.encode())
        told = msgspec.json.encode(self._start(worker_id, host)) + b"\n"
        files.write_secret(self._start_file(worker_id), told)

    def _start_file(self, worker_id: str) -> Path:
        return self._record_dir / f"{worker_id}.start"

    def _host_file(self, worker_id: str) -> Path:
        return self._record_dir / f"{worker_id}.host"

    def _ended(self, exit: WorkerExit) -> None:
        """Handles the end of the client of a worker."""
        worker_id = exit.worker_id
        self._start_file(worker_id).unlink(missing_ok=True)
        host = self._hosts.pop(worker_id)
        # Whether an adopted worker lives is not known yet; its heartbeats will tell.
        if worker_id not in self._adopted and not self._has_come(worker_id):
            said = files.end_of(self._log_dir / f"{worker_id}.log", MOST_LOG_BYTES)
            self._on_failed(worker_id, host, failure(self._settings, host, exit.return_code, said))
