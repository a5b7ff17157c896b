"""The process that starts a job's workers on this machine, and the check of a model before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.common import env
from hvd_elastic_keras.launchers.fork_server import ForkServer

LIBRARIES = ("tensorflow", "keras", "horovod.tensorflow")
KERAS = {env.KERAS_BACKEND: "tensorflow"}
OF_SCRIPTS = (*LIBRARIES, "hvd_elastic_keras.api.callback")
OF_MODELS = (
    *LIBRARIES,
    "hvd_elastic_keras.api.trainer",
    "hvd_elastic_keras.api.inference_job",
    "hvd_elastic_keras.api.loaded_module",
    "hvd_elastic_keras.state.keras_saving",
)


@contextlib.contextmanager
def fork_server(request: JobRequest) -> Iterator[ForkServer | None]:
    """One that runs as long as this is entered; None if the job has no use for it."""
    server = _started(request)
    try:
        yield server
    finally:
        if server:
            server.close()


def _started(request: JobRequest) -> ForkServer | None:
    are_here = request.workers_here > 0 and not request.pods
    if not request.fork_server or not are_here or not hasattr(os, "pidfd_open"):
        return None
    if request.script and not _is_source(request.script):  # Python runs archives, too
        return None
    return ForkServer(
        request.worker_command[1:],
        OF_SCRIPTS if request.script else OF_MODELS,
        request.worker_variables,
        # Of which job it is, for those who look at processes; and as the worker of a model does.
        {env.JOB_DIR: str(request.job_dir), **({} if request.script else KERAS)},
    )


def _is_source(script: list[str]) -> bool:
    path = Path(script[0])
    return path.suffix == ".py" and path.is_file()
