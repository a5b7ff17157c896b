"""The launcher's end of a fork server, a process with all imports of the workers of a model.

A small model spends most of its start-up on imports. A process forked from one that has done the
imports starts without them, and shares their memory. Python's `multiprocessing` ("forkserver")
forks to run functions; here each fork runs a module as a program. Workers of a script start Python
anew, because a script may set variables before it imports TensorFlow.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from hvd_elastic_keras.launchers import fork_server_main, open_files
from hvd_elastic_keras.launchers.fork_server_main import PROCESS_ID
from hvd_elastic_keras.settings import env

MODULES = (
    *("tensorflow", "keras", "horovod.tensorflow"),
    "hvd_elastic_keras.api.trainer",
    "hvd_elastic_keras.api.inference_job",
    "hvd_elastic_keras.api.model_module",
    "hvd_elastic_keras.state.keras_saving",
)
READY_WITHIN_S = 60.0
"""Seconds after which workers do the imports by themselves."""
FORKED_WITHIN_S = 10.0


class ForkServerError(Exception):
    """The server has not forked a process, and will not do so."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a process, sent to a fork server.

    Attributes:
      module: the module that the process runs as a program.
      arguments: arguments of the program.
      variables: environment variables, in addition to those of the server.
      keeper: command of a keeper. If given, the new process becomes it, and its child runs the
        program.
    """

    module: str
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keeper: Sequence[str] = ()


class ForkServer:
    """A process that starts its imports at once, and forks when it is `ready`.

    Args:
      variables: the environment of the server.
      modules: modules that the server imports.
    """

    def __init__(self, variables: Mapping[str, str], modules: Sequence[str] = MODULES) -> None:
        self.variables = dict(variables)
        self._ready: asyncio.Task[bool] | None = None
        self._socket, others = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with others:
            number = str(others.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", fork_server_main.__name__, number, *modules],
                env={env.KERAS_BACKEND: "tensorflow", **self.variables},
                pass_fds=[others.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # The launcher decides how to answer a signal of the terminal.
                start_new_session=True,
            )
        self._socket.setblocking(False)

    @property
    def process_id(self) -> int:
        """The process id of the server."""
        return self._process.pid

    async def ready(self) -> bool:
        """Waits for the imports; returns whether they have succeeded."""
        if self._ready is None:
            self._ready = asyncio.create_task(self._imported())
        return await asyncio.shield(self._ready)

    async def _imported(self) -> bool:
        answer = asyncio.get_running_loop().sock_recv(self._socket, 1)
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return bool(await asyncio.wait_for(answer, READY_WITHIN_S))
        return False

    @property
    def is_ready(self) -> bool:
        """Whether `ready` was awaited, and the imports have succeeded."""
        waited = self._ready
        return waited is not None and waited.done() and not waited.cancelled() and waited.result()

    def fork(self, request: Request, stdout: int, stderr: int) -> int:
        """Starts a process, which writes to two open files; returns its id.

        Raises:
          ForkServerError: the server does not answer; it has been ended.
        """
        message, answer = json.dumps(dataclasses.asdict(request)).encode(), b""
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [message], [stdout, stderr])
            if open_files.until_readable(self._socket.fileno(), FORKED_WITHIN_S):
                answer = self._socket.recv(PROCESS_ID.size)
        if len(answer) < PROCESS_ID.size:
            self.close()
            raise ForkServerError("the process that starts workers (fork server) does not answer")
        return int(PROCESS_ID.unpack(answer)[0])

    def first_line(self, request: Request, stderr: int) -> str:
        """Starts a process and returns the first line that it prints.

        Raises:
          ForkServerError: as `fork`.
        """
        source, sink = os.pipe()
        failed = None
        with os.fdopen(source) as output:
            try:
                self.fork(request, sink, stderr)
            except ForkServerError as error:
                failed = error
            finally:
                os.close(sink)
            line = output.readline()
        # A line means that the process was forked, and only the answer is missing.
        if failed and not line:
            raise failed
        return line

    def close(self) -> None:
        """Ends the server, but none of the processes that it has forked."""
        if self._ready:
            self._ready.cancel()
        self._ready = None
        self._socket.close()
        self._process.kill()
        self._process.wait()
