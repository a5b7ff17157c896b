"""The process of a `ForkServer`: does the imports of a model's workers once, then forks processes.

    python -m hvd_elastic_keras.launchers.fork_server_main SOCKET MODULE…

SOCKET is the number of a connected socket. Once the modules are imported, the server sends `READY`.
Then each message is one `Request` as JSON, with two open files: standard output and standard error
of the new process. The answer is the id of the new process. The server ends with the process that
started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import tempfile
import threading
from typing import Any

from hvd_elastic_keras.common import garbage
from hvd_elastic_keras.launchers.keeper import FORKED, GO, KEEPER_PID
from hvd_elastic_keras.settings import env

READY = b"+"
MOST_BYTES = 2**18
"""Most bytes of a message. Longer messages do not fit through a packet socket."""
PROCESS_ID = struct.Struct("=i")
PR_SET_PDEATHSIG = 1
HARMLESS_DEVICES = {"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"}
"""Devices that may be open before a fork; a GPU may not, since a forked process cannot use it."""


def main(number: str, *modules: str) -> None:
    """Imports the modules and serves; in each new process, runs the requested module."""
    connection = socket.socket(fileno=int(number))
    # The kernel ends the server with its launcher, also during the imports; it does not end forks.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(BlockingIOError):  # the launcher lives, and has not asked yet
        if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return  # the launcher had ended before this process could be told
    with garbage.not_collected():  # imports leave little garbage
        for name in modules:
            importlib.import_module(name)
        gc.freeze()  # a collection would touch, and so copy, these objects in each process
    serve(connection)


def serve(connection: socket.socket) -> None:
    """Serves a launcher; in each new process, runs the requested module."""
    if _may_be_forked():
        connection.sendall(READY)
        if request := _forked(connection):
            _run(**request)


def _may_be_forked() -> bool:
    """Returns whether the imports have started no thread and opened no GPU."""
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    opened = {os.readlink(link) for link in links if os.path.islink(link)}
    devices = {path for path in opened if path.startswith("/dev/")}
    return threading.active_count() == 1 and devices <= HARMLESS_DEVICES


def _forked(connection: socket.socket) -> dict[str, Any] | None:
    """Forks until the launcher closes its end, then returns None; returns the request in a fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave no zombies
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, 2)
        if not message:
            return None
        forked = os.fork()  # the only threads here are OpenBLAS's, which it ends before a fork
        if not forked:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            null = os.open(os.devnull, os.O_RDONLY)
            for target, descriptor in enumerate((null, *descriptors)):
                os.dup2(descriptor, target)
                os.close(descriptor)
            request: dict[str, Any] = json.loads(message)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(PROCESS_ID.pack(forked))


def _run(module: str, arguments: list[str], variables: dict[str, str], keeper: list[str]) -> None:
    """Runs a module as `python -m MODULE ARGUMENTS…` would; see `fork_server.Request`."""
    env.set_variables(variables)
    if keeper:
        _fork_under_keeper(keeper)
    tempfile.tempdir = None  # TMPDIR has changed
    if random := sys.modules.get("numpy.random"):
        random.seed()  # Python seeds its own generator anew after a fork
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _fork_under_keeper(command: list[str]) -> None:
    """Makes this process the keeper of a child, by `exec`; returns in the child, which runs on."""
    keeper = os.getpid()
    source, sink = os.pipe()
    waits, go = os.pipe()
    listens, told = os.pipe()
    os.setsid()
    worker = os.fork()
    if worker:
        for fd in (sink, waits, told):
            os.close(fd)
        os.read(listens, 1)  # now the worker leads a session, which can be killed as a whole
        for fd in (source, go):
            os.set_inheritable(fd, True)
        os.execv(command[0], [*command, FORKED, str(worker), str(source), str(go)])
    os.setsid()
    os.dup2(sink, 1)
    for fd in (source, sink, go, listens, told):
        os.close(fd)
    if os.read(waits, 1) != GO:  # the keeper has refused the worker, or is gone
        os._exit(1)
    os.close(waits)
    env.set_variables({KEEPER_PID: str(keeper)})


if __name__ == "__main__":
    main(*sys.argv[1:])
