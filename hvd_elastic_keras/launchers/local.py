"""Workers as processes of this machine, each in a process group of its own.

A worker does not end with its launcher: its parent is a `keeper`, and the next launcher of the job
may adopt it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, TextIO

import msgspec

from hvd_elastic_keras.common import env
from hvd_elastic_keras.launchers import keeper, open_files, waiting
from hvd_elastic_keras.launchers.base import LOCALHOST, LaunchedWorker, WorkerExit, exit_cause
from hvd_elastic_keras.launchers.fork_server import ForkServer, ForkServerError, Request

log = logging.getLogger(__name__)
UNSEEN = (
    "ended while no launcher ran, and so did its parent process (keeper.py), which would tell how: "
    "both were killed, or this machine was restarted"
)
LONGEST_LINE = 2**16
"""Characters that are kept of a line that a worker prints."""
CUT = f" … (cut after {LONGEST_LINE:,} characters; the whole line is in the worker's log)"
KEEPER = (sys.executable, "-I", "-S", str(Path(keeper.__file__).resolve()))


class WorkerRecord(msgspec.Struct, frozen=True):
    """What a keeper notes of its worker.

    Attributes:
      started: when the process has started, in clock ticks; with it, a `pid` is not mistaken.
      exit: as `WorkerExit.return_code`; None as long as the worker runs.
    """

    pid: int
    started: int | None
    keeper: int
    keeper_started: int | None
    scratch: str
    exit: int | None

    @property
    def is_kept(self) -> bool:
        """Whether its keeper lives, and with it or soon after it the worker ends."""
        return keeper.start_ticks(self.keeper) == self.keeper_started

    @property
    def noted_in(self) -> Path | None:
        """Where the keeper of a living worker has its notes; None if it is gone."""
        with contextlib.suppress(OSError, IndexError):
            command = Path(f"/proc/{self.keeper}/cmdline").read_bytes().split(b"\0")
            return Path(os.fsdecode(command[len(KEEPER)])).parent
        return None

    def belongs_to(self, directory: Path) -> bool:
        """Whether its keeper has its notes there, and not where they were copied from."""
        with contextlib.suppress(OSError):
            return self.noted_in is not None and self.noted_in.samefile(directory)
        return False

    def kill(self) -> None:
        """Sends SIGKILL to the worker's process group."""
        if keeper.start_ticks(self.pid) == self.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def kept_workers(directory: Path) -> dict[str, WorkerRecord]:
    """The local workers that live, by id, whatever has become of their launcher.

    In a copy of a job directory, they are those of the other job; see `WorkerRecord.belongs_to`.
    """
    found = ((path.stem, _read(path)) for path in directory.glob("*.json"))
    return {worker_id: kept for worker_id, kept in found if kept and kept.is_kept}


def end_kept_workers(workers: Collection[WorkerRecord]) -> None:
    """Ends workers that no launcher looks after, and waits until they are gone."""
    for kept in workers:
        kept.kill()
    for kept in workers:
        _wait_for(kept)


def _read(path: Path) -> WorkerRecord | None:
    try:
        return _decoded(path.read_bytes())
    except OSError:
        return None


def _decoded(data: bytes) -> WorkerRecord | None:
    try:
        return msgspec.json.decode(data, type=WorkerRecord)
    except msgspec.DecodeError:
        return None


class LocalLauncher:
    """Starts the `command` of each worker; output goes to `log_dir/<worker id>.log`.

    Each has a directory of its own for temporary files, which goes when it ends, however that is.

    What a worker prints to stdout is also handed to `on_output(worker_id, line)`. `variables` are
    what is the same in the environment of all (`env.worker_variables`). Keepers note in
    `record_dir` what they know of their workers.
    `file_limits` are the workers' limits of open files, if they are not to be this process's own.
    A `fork_server`, once it is ready, starts workers whose command is `python -m MODULE…`. If it
    is gone, `warn` says so.
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
        """In the names of the workers' directories for temporary files."""
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
        self._remove_scratch(worker_id)  # of a launcher that was killed here; stops its keeper, too
        scratch = tempfile.mkdtemp(prefix=f"{env.SCRATCH_PREFIX}{worker_id}-{self._job}-")
        try:
            os.mkfifo(Path(scratch, keeper.OUTPUT))
            output = self._listen(scratch)
            wait = self._start_keeper(worker_id, scratch)
            kept = _read(self._record(worker_id))
            if kept is None:
                raise OSError(f"{self._record(worker_id)} cannot be read")
            record = self._record(worker_id).open("rb")
        except (OSError, ForkServerError):
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        if self._file_limits:
            open_files.set_limit(kept.pid, self._file_limits)
        waits = wait or functools.partial(_wait_for, kept)
        self._watch(worker_id, kept, on_exit, output=output, record=record, wait=waits)
        return LaunchedWorker(LOCALHOST, kept.pid)

    def adopt(self, worker_id: str, on_exit: Callable[[WorkerExit], None]) -> LaunchedWorker | None:
        """Looks after a worker that another launcher has started. See `Launcher.adopt`."""
        kept = _read(self._record(worker_id))
        if kept is None:
            return None
        if kept.is_kept and kept.belongs_to(self._record_dir):
            self._watch(
                worker_id,
                kept,
                on_exit,
                output=self._listen(kept.scratch),
                record=self._record(worker_id).open("rb"),
                wait=functools.partial(_wait_for, kept),
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
        """Ids of the workers that have not ended."""
        return list(self._workers)

    def close(self) -> None:
        """The job is over: nobody will adopt anybody."""
        shutil.rmtree(self._record_dir, ignore_errors=True)
        self._remove_scratch("*")

    def _remove_scratch(self, worker_id: str) -> None:
        """Removes what was left before a keeper had come to look after it."""
        pattern = f"{env.SCRATCH_PREFIX}{worker_id}-{self._job}-*"
        for path in Path(tempfile.gettempdir()).glob(pattern):
            shutil.rmtree(path, ignore_errors=True)

    def _record(self, worker_id: str) -> Path:
        return self._record_dir / f"{worker_id}.json"

    def _start_keeper(self, worker_id: str, scratch: str) -> Callable[[], int] | None:
        """Returns what waits for the keeper's end, if it is a child of this process."""
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
                waiting.until_readable(output)
                os.set_blocking(output, True)
                with os.fdopen(output, errors="replace") as printed:
                    for line in lines_of(printed):
                        self._call(self._on_output, worker_id, line)

        def wait_for_end() -> None:
            keepers_code = wait()
            kept.kill()  # if it was the keeper that was killed
            shutil.rmtree(kept.scratch, ignore_errors=True)
            with record:  # which may have been removed
                last = _decoded(record.read())
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
    """The lines that a worker prints, without their ends; the end of a very long one is left out.

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
    """Starts a process; returns the first line that it prints, and what waits for its end."""
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
    """Why a worker ended whose exit code its keeper has not noted; see `WorkerExit.reason`.

    Args:
      code: that of the keeper; None if it was started by another launcher.
    """
    cause = "is gone" if code is None else exit_cause(code)
    return f"was ended together with its parent process (keeper.py), which {cause}"


def _wait_for(kept: WorkerRecord) -> int | None:
    """Waits for the end of a keeper that is no child of this process: nobody knows its code."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(kept.keeper)
        try:
            if kept.is_kept:
                waiting.until_readable(descriptor)
        finally:
            os.close(descriptor)
    return None
