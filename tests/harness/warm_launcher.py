"""Runs `hvd_elastic_keras.run` without its imports: it is forked from a process that has done them.

For jobs with a warm server (see `warm_server.py`), and for those who join a job. The worker of a
joiner is a fork of the joiner, which has the imports of workers, too. `ColdJob` starts Python anew.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hvd_elastic_keras.launchers import fork_server, fork_server_main
from hvd_elastic_keras.settings import env
from tests.harness import warm_python, warm_server

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTS = tuple(f"hvd_elastic_keras.cli.{name}" for name in ("dry_run", "join.join_job", "run_job"))
"""What the command imports that takes long; its own module is run in each fork."""
WORKER = "hvd_elastic_keras.cli.join.joined_process"
PR_SET_CHILD_SUBREAPER = 36
MOST_BYTES, MOST_FILES = 2**18, 2**12
PLACES: list[int] = []
"""In a joiner: the address of the job's directory in what `/proc/PID/environ` shows."""


class Launcher:
    """A process that runs `python -m MODULE ARGUMENTS…`: a child of this one, forked by another.

    Args:
      joins: whether the command is that of a joiner, and its worker is forked, too.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: dict[str, str],
        outputs: tuple[int, int],
        joins: bool = False,
        directory: Path | None = None,
    ) -> None:
        asked = {
            "module": module,
            "arguments": list(arguments),
            "environment": environment,
            "directory": str(directory or Path.cwd()),
        }
        connection = _server(joins)
        _be_parent_of_orphans(True)
        try:
            socket.send_fds(connection, [json.dumps(asked).encode()], list(outputs))
            self.pid = int(connection.recv(MOST_BYTES))
        finally:
            _be_parent_of_orphans(False)
        self.returncode: int | None = None
        self._handle = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Returns the exit code as `subprocess` gives it; None if the process has not ended."""
        if self.returncode is None and select.select([self._handle], [], [], 0)[0]:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._handle)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit code.

        Raises:
          subprocess.TimeoutExpired: the process has not ended.
        """
        if self.returncode is None:
            select.select([self._handle], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _be_parent_of_orphans(value: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(value))


@functools.cache
def _server(joins: bool) -> socket.socket:
    """Returns the connection to a process that forks launchers, or joiners."""
    ours, others = socket.socketpair(type=socket.SOCK_SEQPACKET)
    modules = (*IMPORTS, *(fork_server.MODULES if joins else ()))
    with others:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.warm_launcher", str(others.fileno()), *modules],
            # The forks overwrite the spaces.
            env={
                **os.environ,
                env.JOB_DIR: " " * warm_server.LONGEST_JOB_DIR,
                env.KERAS_BACKEND: env.BACKEND,
            },
            cwd=REPOSITORY,
            pass_fds=[others.fileno()],
            stdin=subprocess.DEVNULL,
        )
    atexit.register(process.wait)
    atexit.register(process.kill)
    return ours


# --- in the process that forks -----------------------------------------------------------


def main(number: str, *modules: str) -> None:
    """Imports, then forks for each request. The fork is given to who has asked."""
    ctypes.CDLL(None).prctl(fork_server_main.PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = socket.socket(fileno=int(number))
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    while True:
        message, outputs, _, _ = socket.recv_fds(connection, MOST_BYTES, 2)
        if not message:
            return
        told, tells = os.pipe()
        between = os.fork()
        if not between:
            forked = os.fork()
            if forked:
                os.write(tells, str(forked).encode())
                os._exit(0)
            for file in (told, tells):
                os.close(file)
            connection.close()
            for target, output in enumerate(outputs, 1):
                os.dup2(output, target)
                os.close(output)
            _run(json.loads(message), joins=fork_server.MODULES[0] in modules)
            return
        os.waitpid(between, 0)  # now the fork is a child of who has asked
        answer = os.read(told, MOST_BYTES)
        for file in (told, tells, *outputs):
            os.close(file)
        connection.send(answer)


def _run(asked: dict[str, Any], *, joins: bool) -> None:
    place = warm_server.place_of_job_dir()
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    tempfile.tempdir = None  # TMPDIR has changed
    if joins:
        PLACES.append(place)
        of_worker = importlib.import_module(WORKER)
        of_worker.subprocess = _Subprocess()
    _run_module(asked["module"], asked["arguments"])


def _run_module(module: str, arguments: Sequence[str]) -> None:
    sys.path[0] = os.getcwd()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class _Subprocess:
    """The module `subprocess` for a joiner, whose worker is forked."""

    def __init__(self) -> None:
        self.Popen = _ForkedWorker

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


class _ForkedWorker(subprocess.Popen[bytes]):
    """A worker with the imports of this process. A fork becomes it where it would `exec`.

    A worker of a script starts anew, as always: see `fork_server.py`.
    """

    def __init__(self, command: Sequence[str], *, env: dict[str, str], **options: Any) -> None:
        is_module = tuple(command[:2]) == (sys.executable, "-m")
        become = functools.partial(_become_worker, command, env) if is_module else None
        super().__init__(command, env=env, preexec_fn=become, **options)


def _become_worker(command: Sequence[str], environment: dict[str, str]) -> NoReturn:
    """Runs the module of a worker, and ends as a program does."""
    gc.freeze()  # or objects of the joiner would close files that are not theirs any more
    os.closerange(3, MOST_FILES)
    atexit._clear()
    for number in signal.valid_signals() - {signal.SIGINT}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job_dir = f"{environment[env.JOB_DIR]}\0".encode()
    ctypes.memmove(PLACES[0], job_dir, len(job_dir))
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.modules["numpy.random"].seed()
    warm_python.end_as_program(_run_module, command[2], command[3:])


if __name__ == "__main__":
    main(*sys.argv[1:])
