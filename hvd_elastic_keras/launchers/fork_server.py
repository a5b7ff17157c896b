"""A process of this machine that has imported what workers import, as its launcher sees it.

Most of a small model's start-up are imports. A process that is forked has them, and shares their
memory with all others. Such servers are known from Python's `multiprocessing` ("forkserver"); this
one starts whole programs, see `forked_process`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from hvd_elastic_keras.common import env
from hvd_elastic_keras.launchers import fork_server_main, waiting
from hvd_elastic_keras.launchers.fork_server_main import PROCESS_ID
from hvd_elastic_keras.launchers.forked_process import Request

MAIN = str(Path(fork_server_main.__file__).resolve())
READ_LATE = (env.OWN_PREFIX, "TMPDIR", "CUDA_VISIBLE_DEVICES", *env.GPU_MEMORY)
"""Beginnings of names of variables that nobody reads in an import: they may differ."""
READY_WITHIN_S = 60.0
"""So long workers wait for the imports, which they would have to do themselves."""
FORKED_WITHIN_S = 10.0


class ForkServerError(Exception):
    """Nothing was forked, and nothing will be."""


@dataclasses.dataclass(frozen=True)
class Start:
    """What a process is to run.

    Attributes:
      command: `script.py [arguments]` or `-m module [arguments]`, which follows Python's name.
      variables: the environment.
      keeper: see `forked_process.Request`.
    """

    command: Sequence[str]
    variables: Mapping[str, str]
    keeper: Sequence[str] = ()


class ForkServer:
    """Starts at once, and is there for others when it is `ready`.

    Args:
      command: what most processes are to run, see `Start`.
      modules: what they import.
      variables: the environment in which that happens.
      defaults: set there if they are not in `variables`; no process gets them.
    """

    def __init__(
        self,
        command: Sequence[str],
        modules: Sequence[str],
        variables: Mapping[str, str],
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        self._variables = dict(variables)
        self._ready: asyncio.Task[bool] | None = None
        self._closed = False
        self._socket, others = socket.socketpair()
        with others:
            self._process = subprocess.Popen(
                [sys.executable, MAIN, str(others.fileno()), ",".join(modules), *command],
                env={**(defaults or {}), **self._variables},
                pass_fds=[others.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # The signals of a terminal are for the launcher, which decides.
                start_new_session=True,
            )
        self._socket.setblocking(False)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the server."""
        return dict(self._variables)

    @property
    def process_id(self) -> int:
        """Of the server."""
        return self._process.pid

    async def ready(self) -> bool:
        """Waits for the imports; false if they have failed, or take too long."""
        if self._ready is None:
            self._ready = asyncio.create_task(self._hear())
        return await asyncio.shield(self._ready)

    async def _hear(self) -> bool:
        heard = asyncio.get_running_loop().sock_recv(self._socket, 1)
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return bool(await asyncio.wait_for(heard, READY_WITHIN_S))
        return False

    def suits(self, variables: Mapping[str, str]) -> bool:
        """Whether it is known to be ready, and its imports were made in such an environment."""
        waited = self._ready
        if self._closed or waited is None or not waited.done() or not waited.result():
            return False
        return _read_early(variables) == _read_early(self._variables)

    @staticmethod
    async def ended(process: int) -> None:
        """Returns when a process has ended that was forked."""
        await asyncio.to_thread(waiting.until_ended, process)

    def fork(self, start: Start, stdout: int, stderr: int) -> int:
        """Starts a process, to which the two open files go; returns its id.

        Raises:
          ForkServerError: the server does not answer, and is ended.
        """
        content = Request(list(start.command), dict(start.variables), list(start.keeper)).encode()
        answer = b""
        with contextlib.suppress(OSError), _unnamed_file() as file:
            file.write(content)
            file.flush()
            socket.send_fds(self._socket, [b"?"], [file.fileno(), stdout, stderr])
            if waiting.until_readable(self._socket.fileno(), FORKED_WITHIN_S):
                answer = self._socket.recv(PROCESS_ID.size)
        if len(answer) < PROCESS_ID.size:
            self.close()
            raise ForkServerError("the process that starts workers (fork server) does not answer")
        return int(PROCESS_ID.unpack(answer)[0])

    def first_line(self, start: Start, stderr: int) -> str:
        """Starts a process and returns the first line that it prints.

        Raises:
          ForkServerError: as `fork`.
        """
        source, sink = os.pipe()
        failed = None
        with os.fdopen(source) as output:
            try:
                self.fork(start, sink, stderr)
            except ForkServerError as error:
                failed = error
            finally:
                os.close(sink)
            line = output.readline()
        if failed and not line:  # else it has been forked, and only the answer is missing
            raise failed
        return line

    def close(self) -> None:
        """Ends the server, and none of the processes that it has forked."""
        self._closed = True
        if self._ready:
            self._ready.cancel()
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _unnamed_file() -> IO[bytes]:
    """For what is secret; some builds of Python know of no files in memory."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("request"), "wb")
    return tempfile.TemporaryFile()


def _read_early(variables: Mapping[str, str]) -> dict[str, str]:
    return {n: v for n, v in variables.items() if not n.startswith(READ_LATE)}
