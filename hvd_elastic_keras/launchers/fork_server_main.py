"""The process of a `ForkServer`: imports what workers import, once, and forks for each of them.

    python fork_server_main.py SOCKET MODULES COMMAND…

SOCKET is the number of a connected socket, MODULES are names with commas between them, and COMMAND
is what the processes run: `script.py [arguments]` or `-m module`. From it follows where modules are
found, and who looks for it in a list of processes finds them.

At the end of its imports it sends `READY`; without that nobody asks for anything. Each request is
one byte, which brings three open files: a file with a `forked_process.Request`, standard output and
standard error. The answer is the process id. The server ends with the process that has started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import struct
import sys
import threading
import warnings
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_elastic_keras.launchers import forked_process

READY = b"+"
PR_SET_PDEATHSIG = 1
PROCESS_ID = struct.Struct("=i")
HARMLESS_DEVICES = {"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"}
"""No process may use a GPU that was opened before it was forked."""


def path_entry(command: list[str]) -> str:
    """What Python puts at the head of `sys.path` for a command."""
    return os.getcwd() if command[0] == "-m" else os.path.dirname(os.path.realpath(command[0]))


def serve(connection: socket.socket) -> forked_process.Request | None:
    """Forks until nobody can ask any more: None. In a new process: what it was asked to run."""
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        marks, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        if not marks:
            return None
        with warnings.catch_warnings():
            # Python warns of threads. Those of OpenBLAS, which has no others here, end before.
            warnings.simplefilter("ignore")
            forked = os.fork()
        if not forked:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            from hvd_elastic_keras.launchers import forked_process

            return forked_process.take_over(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(PROCESS_ID.pack(forked))


def _reap(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _import(modules: list[str]) -> dict[str, str | None]:
    """Returns the environment variables that the imports have set, or removed: None."""
    # Hardly anything that is imported is garbage soon. What is there now is not looked at again,
    # which would copy it to each process.
    gc.disable()
    before = dict(os.environ)
    for name in modules:
        __import__(name)
    gc.freeze()
    gc.enable()
    return {
        n: os.environ.get(n) for n in {*before, *os.environ} if os.environ.get(n) != before.get(n)
    }


def _may_be_forked() -> bool:
    keras = sys.modules.get("keras")
    if keras and keras.backend.backend() != "tensorflow":  # a script may choose another one
        return False
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    with contextlib.suppress(OSError):  # of `listdir` itself
        opened = {os.readlink(link) for link in links if os.path.islink(link)}
        devices = {path for path in opened if path.startswith("/dev/")}
        return threading.active_count() == 1 and devices <= HARMLESS_DEVICES
    return False


def main() -> None:
    """Serves, and in each new process runs the command."""
    number, modules, *command = sys.argv[1:]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = path_entry(command)
    connection = socket.socket(fileno=int(number))
    # Also in the midst of the imports. What is forked does not inherit it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(BlockingIOError):
        if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return  # the launcher was gone before
    changed = _import(["hvd_elastic_keras.launchers.forked_process", *modules.split(",")])
    if _may_be_forked():
        connection.sendall(READY)
        if request := serve(connection):
            from hvd_elastic_keras.launchers import forked_process

            forked_process.run(request.command, changed)


if __name__ == "__main__":
    main()
