"""Workers on other hosts, started with the user's own OpenSSH client.

On the other host a joiner (`run --join`) looks after the worker, and tells the master of its end.
The connection only starts the joiner and brings its output: if the connection is lost, the worker
trains on. On this host, each ssh client has a keeper, like a local worker, so that the client
outlives the launcher.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from hvd_elastic_keras.common import env, files
from hvd_elastic_keras.launchers.base import LOCALHOST, LaunchedWorker, WorkerExit
from hvd_elastic_keras.launchers.local import LocalLauncher
from hvd_elastic_keras.launchers.ssh_command import RemoteStart, SshSettings, failure

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
