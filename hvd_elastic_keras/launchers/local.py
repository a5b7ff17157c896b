"""Workers as processes of this machine, each in a process group of its own.

A worker does not end with its launcher, because its parent is a `keeper`. The next launcher of the
job may adopt the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, TextIO

from hvd_elastic_keras.launchers import keeper, open_files
from hvd_elastic_keras.launchers.base import LOCALHOST, LaunchedWorker, WorkerExit, exit_cause
from hvd_elastic_keras.launchers.fork_server import ForkServer, ForkServerError, Request
from hvd_elastic_keras.launchers.kept_workers import (
    KEEPER,
    WorkerRecord,
    decoded,
    read_record,
    wait_for,
)
from hvd_elastic_keras.settings import env

log = logging.getLogger(__name__)
UNSEEN = (
    "ended while no launcher ran, and so did its parent process (keeper.py), which would tell how: "
    "both were killed, or this machine was restarted"
)
LONGEST_LINE = 2**16
"""Most characters kept of a line that a worker prints."""
CUT = f" … (cut after {LONGEST_LINE:,} characters; the whole line is in the worker's log)"


class LocalLauncher:
    """Starts the `command` of each worker; output goes to `log_dir/<worker id>.log`.

    Each worker has its own directory for temporary files, which is removed when the worker ends, in
    whatever way.

    Args:
      command: returns the command of a worker.
      log_dir: directory for the logs of the workers.
      record_dir: directory for the notes of keepers about their workers.
      environment: returns the environment of a worker.
      on_output: called with worker id and line for each line that a worker prints to stdout.
      variables: environment variables that are the same for all workers
        (`env.worker_variables`).
      file_limits: limits of open files for the workers; None: the limits of this process.
      fork_server: starts workers once it is ready; the command must then be `python -m MODULE…`.
      warn: called with a text if the fork server is gone.
    """

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        log_dir: Path,
        record_dir: Path,
        environment: Callable[[str], env.WorkerEnvironment],
        on_output: Callable[[str, str], None],
        *,
        variables: Mapping[str, str],
        file_limits: open_files.Limits | None = None,
        fork_server: ForkServer | None = None,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self._command = command
        self._log_dir = log_dir
        self._record_dir = record_dir
        self._environment = environment
        self._on_output = on_output
        self._shared_variables = variables
        self._file_limits = file_limits
        self._fork_server = fork_server
        self._warn = warn
        self._job = f"{zlib.crc32(os.fsencode(record_dir.resolve())):08x}"
        """Part of the names of the workers' directories for temporary files."""
        self._loop = asyncio.get_running_loop()
        self._workers: dict[str, WorkerRecord] = {}

    def launch(
        self, worker_id: str, host: str, on_exit: Callable[[WorkerExit], None]
    ) -> LaunchedWorker:
        """Starts a worker process. See `Launcher.launch`."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._record_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return self._launch(worker_id, on_exit)
        except ForkServerError as error:
            self._warn(f"warning: {error}; from now on, workers import TensorFlow by themselves")
            self._fork_server = None
            return self._launch(worker_id, on_exit)

    def _launch(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> LaunchedWorker:
        self._remove_scratch(worker_id)  # left by a launcher killed here; its keeper then stops
        scratch = tempfile.mkdtemp(prefix=f"{env.SCRATCH_PREFIX}{worker_id}-{self._job}-")
        try:
            os.mkfifo(Path(scratch, keeper.OUTPUT))
            output = self._listen(scratch)
            wait = self._start_keeper(worker_id, scratch)
            kept = read_record(self._record(worker_id))
            if kept is None:
                raise OSError(f"{self._record(worker_id)} cannot be read")
            record = self._record(worker_id).open("rb")
        except (OSError, ForkServerError):
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        if self._file_limits:
            open_files.set_limit(kept.pid, self._file_limits)
        waits = wait or functools.partial(wait_for, kept)
        self._watch(worker_id, kept, on_exit, output=output, record=record, wait=waits)
        return LaunchedWorker(LOCALHOST, kept.pid)

    def adopt(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> LaunchedWorker | None:
        """Looks after a worker that an earlier launcher has started. See `Launcher.adopt`."""
        kept = read_record(self._record(worker_id))
        if kept is None:
            return None
        if kept.is_kept and kept.belongs_to(self._record_dir):
            self._watch(
                worker_id,
                kept,
                on_exit,
                output=self._listen(kept.scratch),
                record=self._record(worker_id).open("rb"),
                wait=functools.partial(wait_for, kept),
            )
        else:
            reason = UNSEEN if kept.exit is None else ""
            self._loop.call_soon(on_exit, WorkerExit(worker_id, kept.exit, reason))
        return LaunchedWorker(LOCALHOST, kept.pid)

    def kill(self, worker_id: str) -> None:
        """Sends SIGKILL to a worker's process group."""
        if kept := self._workers.get(worker_id):
            kept.kill()

    def running(self) -> list[str]:
        """Returns the ids of the workers that have not ended."""
        return list(self._workers)

    def close(self) -> None:
        """Removes all notes, because the job is over and no launcher will adopt a worker."""
        shutil.rmtree(self._record_dir, ignore_errors=True)
        self._remove_scratch("*")

    def _remove_scratch(self, worker_id: str) -> None:
        """Removes temporary directories left by a launcher that was killed before a keeper ran."""
        pattern = f"{env.SCRATCH_PREFIX}{worker_id}-{self._job}-*"
        for path in Path(tempfile.gettempdir()).glob(pattern):
            shutil.rmtree(path, ignore_errors=True)

    def _record(self, worker_id: str) -> Path:
        return self._record_dir / f"{worker_id}.json"

    def _start_keeper(self, worker_id: str, scratch: str) -> Callable[[], int] | None:
        """Returns a function that waits for the keeper's end, if it is a child of this process."""
        path = self._log_dir / f"{worker_id}.log"
        variables, command = self._variables(worker_id, scratch), self._command(worker_id)
        keeper = [*KEEPER, str(self._record(worker_id)), str(path), scratch]
        server = self._fork_server
        wait = None
        with path.open("a") as errors:
            if server and server.is_ready:
                own = {n: v for n, v in variables.items() if server.variables.get(n) != v}
                request = Request(command[2], command[3:], own, keeper)
                told = server.first_line(request, errors.fileno())
            else:
                told, wait = _spawned([*keeper, *command], variables, errors)
        if not told.startswith("pid "):
            if wait:
                wait()
            reason = told.removeprefix("error ").rstrip()
            raise OSError(reason or f"the keeper has failed; see {path}")
        return wait

    @staticmethod
    def _listen(scratch: str) -> int | None:
        try:
            return os.open(Path(scratch, keeper.OUTPUT), os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None  # the worker has ended, or its directory was cleared away

    def _watch(
        self,
        worker_id: str,
        kept: WorkerRecord,
        on_exit: Callable[[WorkerExit], None],
        *,
        output: int | None,
        record: BinaryIO,
        wait: Callable[[], int | None],
    ) -> None:
        self._workers[worker_id] = kept

        def pump() -> None:
            if output is not None:
                open_files.until_readable(output)
                os.set_blocking(output, True)
                with os.fdopen(output, errors="replace") as printed:
                    for line in lines_of(printed):
                        self._call(self._on_output, worker_id, line)

        def wait_for_end() -> None:
            keepers_code = wait()
            kept.kill()  # the keeper may have been killed, not the worker
            shutil.rmtree(kept.scratch, ignore_errors=True)
            with record:  # open already, because the file may have been removed
                last = decoded(record.read())
            code = last.exit if last else None
            reason = _without_keeper(keepers_code) if code is None else ""
            self._call(self._ended, WorkerExit(worker_id, code, reason), on_exit)

        for work in (pump, wait_for_end):
            threading.Thread(target=work, name=f"{worker_id}-{work.__name__}", daemon=True).start()

    def _variables(self, worker_id: str, scratch: str) -> dict[str, str]:
        own = {**self._environment(worker_id).to_variables(), "TMPDIR": scratch}
        return {**self._shared_variables, **own}

    def _ended(self, ended: WorkerExit, on_exit: Callable[[WorkerExit], None]) -> None:
        self._workers.pop(ended.worker_id, None)
        on_exit(ended)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the job is over
            self._loop.call_soon_threadsafe(function, *args)


def lines_of(printed: TextIO) -> Iterator[str]:
    """Yields the lines that a worker prints, without newlines; cuts the end of very long lines.

    >>> import io
    >>> [len(line) for line in lines_of(io.StringIO("a\\n" + "b" * 10**6))]
    [1, 65607]
    """
    while line := printed.readline(LONGEST_LINE):
        yield line.removesuffix("\n") if _is_whole(line) else line + CUT
        while not _is_whole(line):
            line = printed.readline(LONGEST_LINE)


def _is_whole(line: str) -> bool:
    return line.endswith("\n") or len(line) < LONGEST_LINE


def _spawned(
    command: Sequence[str], variables: Mapping[str, str], errors: IO[str]
) -> tuple[str, Callable[[], int]]:
    """Starts a process; returns its first line, and a function that waits for its end."""
    process = subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
        text=True,
    )
    return process.stdout.readline() if process.stdout else "", process.wait


def _without_keeper(code: int | None) -> str:
    """Returns why a worker without a noted exit code ended; see `WorkerExit.reason`.

    Args:
      code: exit code of the keeper; None if another launcher has started it.
    """
    cause = "is gone" if code is None else exit_cause(code)
    return f"was ended together with its parent process (keeper.py), which {cause}"
