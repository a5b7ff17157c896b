"""Workers as processes of this machine, each in a process group of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from hvd_elastic_keras import env
from hvd_elastic_keras.launchers.base import LaunchedWorker, exit_cause
from hvd_elastic_keras.master.actions import Exited
from hvd_elastic_keras.master.state import LOCALHOST


class LocalLauncher:
    """Starts `command` once per worker; output goes to `log_dir/<worker id>.log`.

    Each has a directory of its own for temporary files, which goes when it ends, however that is.

    What a worker prints to stdout is also handed to `on_output(worker_id, line)`. `threads` is
    the number of threads of a worker's TensorFlow operations; unless `keeps_threads`, the user may
    say otherwise in the environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        log_dir: Path,
        environment: Callable[[str], env.WorkerEnvironment],
        on_output: Callable[[str, str], None],
        *,
        threads: int,
        keeps_threads: bool = False,
    ) -> None:
        self._command = list(command)
        self._log_dir = log_dir
        self._environment = environment
        self._on_output = on_output
        names = (env.INTRA_OP_THREADS, "OMP_NUM_THREADS")
        self._threads = dict.fromkeys(names, str(threads))
        self._keeps_threads = keeps_threads
        self._loop = asyncio.get_running_loop()
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def launch(self, worker_id: str, on_exit: Callable[[Exited], None]) -> LaunchedWorker:
        """Starts a worker process. See `Launcher.launch`."""
        log = (self._log_dir / f"{worker_id}.log").open("a", buffering=1)
        scratch = tempfile.mkdtemp(prefix=f"{env.SCRATCH_PREFIX}{worker_id}-")
        process = subprocess.Popen(
            self._command,
            env=self._variables(worker_id, scratch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._processes[worker_id] = process

        def pump() -> None:
            with contextlib.suppress(OSError), log:
                for line in process.stdout or ():
                    # Read on when the disk is full, or the worker would hang in `print`.
                    with contextlib.suppress(OSError):
                        log.write(line)
                    self._call(self._on_output, worker_id, line.rstrip("\n"))

        def wait() -> None:
            # Not after the end of the output: a grandchild may hold the pipe open.
            code = process.wait()
            _kill_group(process.pid)
            shutil.rmtree(scratch, ignore_errors=True)
            self._call(self._ended, worker_id, code, on_exit)

        for work in (pump, wait):
            threading.Thread(target=work, name=f"{worker_id}-{work.__name__}", daemon=True).start()
        return LaunchedWorker(LOCALHOST, process.pid)

    def terminate(self, worker_id: str) -> None:
        """Sends SIGTERM to a worker."""
        process = self._processes.get(worker_id)
        if process:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    def kill(self, worker_id: str) -> None:
        """Sends SIGKILL to a worker's process group."""
        process = self._processes.get(worker_id)
        if process and process.poll() is None:
            _kill_group(process.pid)

    def running(self) -> list[str]:
        """Ids of the workers that have not ended."""
        return list(self._processes)

    def _variables(self, worker_id: str, scratch: str) -> dict[str, str]:
        fixed = self._threads if self._keeps_threads else {}
        return env.child_environment(
            {**self._environment(worker_id).to_variables(), **fixed, "TMPDIR": scratch},
            # Workers share the cores of this machine: each gets its part, unless the user says
            # otherwise.
            defaults={
                **self._threads,
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "PYTHONUNBUFFERED": "1",
            },
        )

    def _ended(self, worker_id: str, code: int, on_exit: Callable[[Exited], None]) -> None:
        self._processes.pop(worker_id, None)
        on_exit(Exited(worker_id, exit_cause(code), failed=code != 0, by_itself=code > 0))

    def _call(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the job is over
            self._loop.call_soon_threadsafe(function, *args)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
