"""The only module that touches `os.environ`.

| name                      | default   | purpose                                               |
|---------------------------|-----------|-------------------------------------------------------|
| HVD_ELASTIC_MASTER        | unset     | host:port of the master; unset means "train alone"    |
| HVD_ELASTIC_TOKEN         | unset     | the job's secret, sent with every request             |
| HVD_ELASTIC_WORKER_ID     | unset     | identity of this process in the job                   |
| HVD_ELASTIC_JOB_DIR       | unset     | directory for checkpoints and results                 |
| HVD_ELASTIC_INTERACTIVE   | 0         | 1 if the launcher's terminal can redraw lines         |
| HVD_ELASTIC_LAUNCHER_PID  | unset     | local workers leave when this process is gone         |
| HVD_ELASTIC_IFACE         | lo        | network interface for Gloo                            |
| HVD_ELASTIC_HOSTNAME      | localhost | name of this host in the job                          |
| HVD_ELASTIC_GLOO_TIMEOUT  | 30        | seconds until Gloo itself gives up a silent peer      |
| HVD_ELASTIC_TIMELINE      | unset     | directory for Horovod's timelines, one per round      |
| HVD_ELASTIC_DETERMINISTIC | 0         | 1: `TrainingConfig.deterministic`, also for scripts   |
| HVD_ELASTIC_BALANCE       | even      | speed: `TrainingConfig.balance`, also for scripts     |
| HVD_ELASTIC_AUDIT         | 0         | 1: `TrainingConfig.audit`, also for scripts           |
| HVD_ELASTIC_SKIP_CORRUPT  | 0         | 1: TFRecord sources leave out corrupt records         |
| XDG_CACHE_HOME            | ~/.cache  | where indexes go whose data cannot be written beside  |
| TMPDIR                    | system's  | set for each worker: its own, removed at its end      |
| TF_NUM_INTRAOP_THREADS    | unset     | TensorFlow's: threads that share an operation         |
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hvd_elastic_keras.config import EVEN

MASTER = "HVD_ELASTIC_MASTER"
TOKEN = "HVD_ELASTIC_TOKEN"
WORKER_ID = "HVD_ELASTIC_WORKER_ID"
JOB_DIR = "HVD_ELASTIC_JOB_DIR"
INTERACTIVE = "HVD_ELASTIC_INTERACTIVE"
LAUNCHER_PID = "HVD_ELASTIC_LAUNCHER_PID"
IFACE = "HVD_ELASTIC_IFACE"
HOSTNAME = "HVD_ELASTIC_HOSTNAME"
GLOO_TIMEOUT = "HVD_ELASTIC_GLOO_TIMEOUT"
TIMELINE = "HVD_ELASTIC_TIMELINE"
DETERMINISTIC = "HVD_ELASTIC_DETERMINISTIC"
BALANCE = "HVD_ELASTIC_BALANCE"
AUDIT = "HVD_ELASTIC_AUDIT"
SKIP_CORRUPT = "HVD_ELASTIC_SKIP_CORRUPT"
CACHE_HOME = "XDG_CACHE_HOME"
INTRA_OP_THREADS = "TF_NUM_INTRAOP_THREADS"

SCRATCH_PREFIX = "hvd_elastic-"
"""Begins the name of a worker's directory for temporary files."""
DETERMINISTIC_THREADS = 1
"""Threads that share an operation where bits must be the same in every process."""


@dataclasses.dataclass(frozen=True)
class WorkerEnvironment:
    """What a launcher tells a worker process through its environment."""

    master: str
    token: str = dataclasses.field(repr=False)
    worker_id: str
    job_dir: str
    interactive: bool = False
    launcher_pid: int | None = None
    iface: str = "lo"
    hostname: str = "localhost"
    gloo_timeout_s: int = 30
    timeline_dir: str = ""
    deterministic: bool = False
    balance: str = EVEN
    audit: bool = False
    skip_corrupt: bool = False

    @property
    def job_path(self) -> Path:
        """Directory for checkpoints and results."""
        return Path(self.job_dir)

    def to_variables(self) -> dict[str, str]:
        """Environment variables for the process; `worker_environment` reads them back."""
        variables = {
            MASTER: self.master,
            TOKEN: self.token,
            WORKER_ID: self.worker_id,
            JOB_DIR: self.job_dir,
            INTERACTIVE: str(int(self.interactive)),
            IFACE: self.iface,
            HOSTNAME: self.hostname,
            GLOO_TIMEOUT: str(self.gloo_timeout_s),
            TIMELINE: self.timeline_dir,
            DETERMINISTIC: str(int(self.deterministic)),
            BALANCE: self.balance,
            AUDIT: str(int(self.audit)),
            SKIP_CORRUPT: str(int(self.skip_corrupt)),
        }
        if self.launcher_pid is not None:
            variables[LAUNCHER_PID] = str(self.launcher_pid)
        return variables


def worker_environment() -> WorkerEnvironment | None:
    """This process's place in a job, or None if it was not started by a launcher."""
    if MASTER not in os.environ:
        return None
    launcher_pid = os.environ.get(LAUNCHER_PID)
    return WorkerEnvironment(
        master=os.environ[MASTER],
        token=os.environ[TOKEN],
        worker_id=os.environ[WORKER_ID],
        job_dir=os.environ[JOB_DIR],
        interactive=os.environ.get(INTERACTIVE) == "1",
        launcher_pid=int(launcher_pid) if launcher_pid else None,
        iface=os.environ.get(IFACE, "lo"),
        hostname=os.environ.get(HOSTNAME, "localhost"),
        gloo_timeout_s=int(os.environ.get(GLOO_TIMEOUT, "30")),
        timeline_dir=os.environ.get(TIMELINE, ""),
        deterministic=deterministic(),
        balance=balance(),
        audit=audit(),
        skip_corrupt=skip_corrupt(),
    )


def deterministic() -> bool:
    """Whether trainings of this process are to be deterministic, whatever they say themselves."""
    return os.environ.get(DETERMINISTIC) == "1"


def balance() -> str:
    """How micro-batches are divided among the workers, unless trainings say more themselves."""
    return os.environ.get(BALANCE, EVEN)


def audit() -> bool:
    """Whether trainings of this process write ledgers, whatever they say themselves."""
    return os.environ.get(AUDIT) == "1"


def skip_corrupt() -> bool:
    """Whether corrupt records are left out, unless a source says more itself."""
    return os.environ.get(SKIP_CORRUPT) == "1"


def cache_dir() -> Path:
    """Where this package keeps what it can make again."""
    home = os.environ.get(CACHE_HOME)
    try:
        base = Path(home) if home else Path.home() / ".cache"
    except RuntimeError:  # in a container, a user may have no home
        base = Path(tempfile.gettempdir())
    return base / "hvd_elastic_keras"


def intra_op_threads() -> int | None:
    """What TensorFlow takes as the number of threads of an operation; None: all processors."""
    value = os.environ.get(INTRA_OP_THREADS, "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Sets environment variables of this process; None removes one (Horovod reads them in C)."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def set_defaults(variables: Mapping[str, str]) -> None:
    """Sets environment variables that the user has not set."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def child_environment(extra: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a child: `defaults` where unset, `extra` in any case."""
    return {**defaults, **os.environ, **extra}


def remove_scratch() -> None:
    """Removes this worker's directory for temporary files: its launcher may be gone."""
    directory = Path(tempfile.gettempdir())
    if directory.name.startswith(SCRATCH_PREFIX):
        shutil.rmtree(directory, ignore_errors=True)
