"""Keeps one local worker: starts it, writes its log, notes how it ended. Outlives the launcher.

    python -I -S keeper.py RECORD LOG SCRATCH COMMAND…
    python -I -S keeper.py RECORD LOG SCRATCH --forked PID SOURCE GO

In the second form, a fork server has already made the worker as a child of this process. The worker
prints to SOURCE, and begins when a byte comes through GO.

If the launcher were the worker's parent, nobody would know the worker's exit code after the
launcher is killed, and the worker's output would end in a broken pipe. This process imports only a
little of the standard library, so it starts in milliseconds. It stays as long as the worker.

All processes that a worker has started end with it, also those that have left its process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Container

KEEPER_PID = "HVD_ELASTIC_KEEPER_PID"
FORKED = "--forked"
GO = b"+"
OUTPUT = "output"
"""Name of a FIFO in the worker's scratch directory, with its output for the launcher."""
RECORD_BYTES = 4096
"""Size of a record from the start on, so that the end can be noted on a full disk, too."""
DRAIN_S = 1.0
"""Seconds to wait for the rest of the output, which another process may hold open."""
PR_SET_CHILD_SUBREAPER = 36
CHILDREN_END_WITHIN_S = 5.0
POLL_S = 0.005
CHUNK = 65536
INHERITED_BY_PYTHON_ONLY = [signal.SIGPIPE, signal.SIGXFSZ]
"""Signals that this interpreter ignores, but the worker does not."""


class Listener:
    """The launcher that reads a FIFO. There may be none now, and another one later."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        self._open()

    def write(self, data: bytes) -> None:
        """Hands data to the launcher, if there is one."""
        if self._fd is None:
            self._open()
        if self._fd is not None:
            try:
                _write_all(self._fd, data)
            except BrokenPipeError:
                os.close(self._fd)
                self._fd = None

    def _open(self) -> None:
        with contextlib.suppress(OSError):  # no launcher reads
            self._fd = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            # Writes wait for a busy launcher, as with a pipe.
            os.set_blocking(self._fd, True)


def _stat(pid: int | str) -> list[str]:
    """Returns state, parent and more of a process (see proc(5)); empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in clock ticks; None if it is gone or a zombie."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def become_parent_of_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends (since Linux 3.4)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Returns the children of this process, including zombies."""
    own = str(os.getpid())
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return {int(pid) for pid in pids if _stat(pid)[1:2] == [own]}


def end_children(spared: Container[int] = ()) -> None:
    """Ends all processes left by a worker that is gone, including daemons in their own sessions.

    Each is a child of this process, or becomes one when its parent ends.

    Args:
      spared: children that do not belong to the worker.
    """
    deadline = time.monotonic() + CHILDREN_END_WITHIN_S
    while time.monotonic() < deadline:
        left = [pid for pid in children() if pid not in spared]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL_S)


def forget_ended_orphans(worker: int) -> None:
    """Removes ended orphans, which would stay as zombies. Returns at once.

    Stops when it finds that the worker itself has ended.
    """
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == worker:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def _wait_for(worker: int) -> int:
    """Returns the exit status of the worker; orphans that end before do not stay as zombies."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == worker:
            return status


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _note(record: int, content: dict[str, object]) -> None:
    os.pwrite(record, json.dumps(content).encode().ljust(RECORD_BYTES), 0)


def _start(command: list[str], log: int, stdout: int) -> int:
    null = os.open(os.devnull, os.O_RDONLY)
    moves = [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate((null, stdout, log))]
    environment = {**os.environ, KEEPER_PID: str(os.getpid())}
    return os.posix_spawnp(
        command[0],
        command,
        environment,
        file_actions=moves,
        setsid=True,
        setsigdef=INHERITED_BY_PYTHON_ONLY,
    )


def _pump(source: int, log: int, listener: Listener) -> None:
    while data := os.read(source, CHUNK):
        with contextlib.suppress(OSError):  # a full disk must not stop the worker in `print`
            _write_all(log, data)
        listener.write(data)


def main(arguments: list[str]) -> int:
    """Runs the worker to its end, and writes its exit code to the record."""
    become_parent_of_orphans()
    record_path, log_path, scratch, *command = arguments
    if not os.path.isdir(scratch):
        print("error another launcher has started this worker meanwhile", flush=True)
        return 1
    record = os.open(record_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    go = None
    if command[0] == FORKED:
        pid, source, go = map(int, command[1:])
    else:
        source, sink = os.pipe()
        try:
            pid = _start(command, log, sink)
        except OSError as error:
            print(f"error {error}", flush=True)
            return 1
        os.close(sink)
    known: dict[str, object] = {
        **{"pid": pid, "started": start_ticks(pid)},
        **{"keeper": os.getpid(), "keeper_started": start_ticks(os.getpid()), "scratch": scratch},
    }
    _note(record, {**known, "exit": None})
    if go is not None:
        with contextlib.suppress(BrokenPipeError):  # the worker was killed meanwhile
            os.write(go, GO)
        os.close(go)
    listener = Listener(os.path.join(scratch, OUTPUT))
    with contextlib.suppress(BrokenPipeError):  # the launcher was killed; the next one adopts
        os.write(1, f"pid {pid}\n".encode())
    os.dup2(log, 1)
    pump = threading.Thread(target=_pump, args=(source, log, listener), daemon=True)
    pump.start()
    status = _wait_for(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _note(record, {**known, "exit": os.waitstatus_to_exitcode(status)})
    end_children()
    pump.join(DRAIN_S)
    import shutil  # imported late, because it takes as long as all other imports

    shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
