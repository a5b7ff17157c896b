"""`hvd_elastic_keras.run` with workers that are forked from the server of `warm_server.py`."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence

from hvd_elastic_keras.cli import job_request, run_job
from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.launchers.fork_server import ForkServer
from hvd_elastic_keras.settings import env
from tests.harness import warm_server


class WarmServer(ForkServer):
    """A fork server that is forked from the one which all jobs share."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = dict(variables)
        self._ready = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(os.environ[warm_server.ADDRESS])
        asked = {
            "variables": {env.KERAS_BACKEND: env.BACKEND, **variables},
            "directory": os.getcwd(),
            "namespaces": warm_server.own_namespaces(),
        }
        self._socket.send(json.dumps(asked).encode())
        self._socket.setblocking(False)

    def close(self) -> None:
        """Ends the server: it reads that the connection has ended."""
        if self._ready:
            self._ready.cancel()
        self._ready = None
        self._socket.close()


def _server(request: JobRequest, stack: contextlib.ExitStack) -> ForkServer | None:
    if request.pods or not request.workers_here:
        return None
    return stack.enter_context(contextlib.closing(WarmServer(run_job._server_variables(request))))


def _script_command(script: Sequence[str]) -> list[str]:
    """Returns the command of a worker of a script, as a module: only modules can be forked."""
    return [sys.executable, "-m", "hvd_elastic_keras.cli.script_main", *script]


if __name__ == "__main__":
    run_job._fork_server = _server
    of_model = job_request.worker_command([])
    job_request.worker_command = lambda script: _script_command(script) if script else of_model
    runpy.run_module("hvd_elastic_keras.run", run_name="__main__", alter_sys=True)
