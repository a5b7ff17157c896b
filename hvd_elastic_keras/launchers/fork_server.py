"""The launcher's end of a process that has imported what workers of a model import.

Most of a small model's start-up are imports. A process forked from one that has made them starts
without them, and shares their memory. Python's `multiprocessing` ("forkserver") forks to run
functions; here each fork runs a module as a program. Python is started anew for each worker of a
script, which may set variables before it imports TensorFlow.
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

from hvd_elastic_keras.common import env
from hvd_elastic_keras.launchers import fork_server_main, waiting
from hvd_elastic_keras.launchers.fork_server_main import PROCESS_ID

MODULES = (
    *("tensorflow", "keras", "horovod.tensorflow"),
    "hvd_elastic_keras.api.trainer",
    "hvd_elastic_keras.api.inference_job",
    "hvd_elastic_keras.api.loaded_module",
    "hvd_elastic_keras.state.keras_saving",
)
READY_WITHIN_S = 60.0
"""After this time, workers make the imports by themselves."""
FORKED_WITHIN_S = 10.0


class ForkServerError(Exception):
    """The server has forked nothing, and will not."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A process that a fork server is asked for.

    Attributes:
      module: its program.
      arguments: of the program.
      variables: environment variables, beside those of the server.
      keeper: command of a keeper. If given, the new process becomes it, and its child runs the
        program.
    """

    module: str
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keeper: Sequence[str] = ()


class ForkServer:
    """Starts importing at once, and serves when it is `ready`.

    Args:
      variables: the environment of the server.
      modules: what it imports.
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
                # The launcher decides what a signal of the terminal does.
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
        """Whether somebody has waited for the imports, and they have succeeded."""
        waited = self._ready
        return waited is not None and waited.done() and not waited.cancelled() and waited.result()

    def fork(self, request: Request, stdout: int, stderr: int) -> int:
        """Starts a process, which writes to two open files; returns its id.

        Raises:
          ForkServerError: the server does not answer, and was ended.
        """
        message, answer = json.dumps(dataclasses.asdict(request)).encode(), b""
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [message], [stdout, stderr])
            if waiting.until_readable(self._socket.fileno(), FORKED_WITHIN_S):
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
        if failed and not line:  # else it has been forked, and only the answer is missing
            raise failed
        return line

    def close(self) -> None:
        """Ends the server, and none of the processes that it has forked."""
        if self._ready:
            self._ready.cancel()
        self._ready = None
        self._socket.close()
        self._process.kill()
        self._process.wait()
