"""A process with the imports of workers, which all jobs of a pytest process share.

A job of `--model` has a fork server, from which its workers are forked. Here, the fork servers are
forked from this process, so that no job waits for the imports. Workers of scripts come from them,
too. Tests about the start of workers use `ColdJob` instead.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from hvd_elastic_keras.launchers import fork_server, fork_server_main
from hvd_elastic_keras.settings import env

REPOSITORY = Path(__file__).resolve().parents[2]
ADDRESS = "TESTS_WARM_SERVER"
NAMESPACES = ("net", "mnt", "pid")
LONGEST_JOB_DIR = 4096


@functools.cache
def address() -> str:
    """Returns the path of the server's socket. The server starts with the first call."""
    directory = tempfile.TemporaryDirectory(prefix="hvd-test-warm-")
    path = str(Path(directory.name, "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.warm_server", str(listener.fileno())],
            # The forks overwrite the spaces.
            env={**os.environ, env.JOB_DIR: " " * LONGEST_JOB_DIR, env.KERAS_BACKEND: env.BACKEND},
            cwd=REPOSITORY,
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(directory.cleanup)
    atexit.register(process.wait)
    atexit.register(process.kill)
    return path


def own_namespaces() -> list[str]:
    """Returns the namespaces of this process; a fork of the server has those of the server."""
    return [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES]


def main(number: str) -> None:
    """Imports, then forks a fork server for each connection."""
    ctypes.CDLL(None).prctl(fork_server_main.PR_SET_PDEATHSIG, signal.SIGKILL)
    listener = socket.socket(fileno=int(number))
    for name in fork_server.MODULES:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            os.setsid()
            _become_server(connection, **json.loads(connection.recv(fork_server_main.MOST_BYTES)))
            return
        connection.close()


def _become_server(
    connection: socket.socket, variables: dict[str, str], directory: str, namespaces: list[str]
) -> None:
    if namespaces != own_namespaces():
        return  # without an answer, the launcher starts workers by itself
    place, job_dir = place_of_job_dir(), f"{variables[env.JOB_DIR]}\0".encode()
    # Tests look for the processes of a job by what `/proc/PID/environ` shows.
    os.register_at_fork(after_in_child=lambda: ctypes.memmove(place, job_dir, len(job_dir)))
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
    os.chdir(directory)
    fork_server_main.serve(connection)


def place_of_job_dir() -> int:
    """Returns the address of the job's directory in what `/proc/PID/environ` shows."""
    for entry in ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ"):
        if entry is None:
            break
        if ctypes.string_at(entry).startswith(f"{env.JOB_DIR}=".encode()):
            return int(entry) + len(env.JOB_DIR) + 1
    raise RuntimeError(f"the environment has no {env.JOB_DIR}")


if __name__ == "__main__":
    main(*sys.argv[1:])
