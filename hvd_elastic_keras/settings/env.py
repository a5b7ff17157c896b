"""The only module that touches `os.environ`.

| name                      | default   | purpose                                               |
|---------------------------|-----------|-------------------------------------------------------|
| HVD_ELASTIC_MASTER        | unset     | host:port of the master; unset means "train alone"    |
| HVD_ELASTIC_TOKEN         | unset     | the job's secret, sent with every request             |
| HVD_ELASTIC_FINGERPRINT   | unset     | SHA-256 of the master's certificate; unset: no TLS    |
| HVD_ELASTIC_WORKER_ID     | unset     | identity of this process in the job                   |
| HVD_ELASTIC_JOB_DIR       | unset     | directory for checkpoints and results                 |
| HVD_ELASTIC_JOB_ID        | unset     | random: tells the jobs of several directories apart   |
| HVD_ELASTIC_JOINED        | 0         | 1 if `run --join` has started this worker             |
| HVD_ELASTIC_KEEPER_PID    | unset     | local workers leave when this process is gone         |
| HVD_ELASTIC_MASTER_TIMEOUT | 600      | seconds until workers leave that hear of no master    |
| HVD_ELASTIC_IFACE         | unset     | network interface for Gloo; unset: that to the master |
| HVD_ELASTIC_HOSTNAME      | localhost | name of this host in the job                          |
| HVD_ELASTIC_GLOO_TIMEOUT  | 30        | seconds until Gloo itself gives up a silent peer      |
| HVD_ELASTIC_TIMELINE      | unset     | directory for Horovod's timelines, one per round      |
| HVD_ELASTIC_OPTIONS       | {}        | `JobOptions` as JSON, also for scripts                |
| HVD_ELASTIC_RUN_<FLAG>    | unset     | a flag of `run`, see `cli/flags/settings.py`          |
| HVD_ELASTIC_RESUMED       | unset     | where the flags came from that `--resume` hands on    |
| PYTHONHASHSEED            | unset     | Python's; for a worker of a script the job's seed     |
| XDG_CACHE_HOME            | ~/.cache  | where indexes go whose data cannot be written beside  |
| TMPDIR                    | system's  | set for each worker: its own, removed at its end      |
| CUDA_VISIBLE_DEVICES      | all       | GPUs; of a worker those of its slot, if asked for     |
| TF_FORCE_GPU_ALLOW_GROWTH | unset     | TensorFlow's: memory of GPUs is taken as needed       |
| TF_CONFIG                 | unset     | TensorFlow's: processes of a job (`--join=TF_CONFIG`) |
| KERAS_BACKEND             | unset     | Keras's: on what it runs; here only TensorFlow        |
| TF_NUM_INTRAOP_THREADS    | unset     | TensorFlow's: threads that share an operation         |
| KUBERNETES_SERVICE_HOST   | unset     | set in pods: there is a cluster round this process    |
| POD_NAME                  | unset     | of the master's pod, by the downward API              |

`launched_by.py` names the variables of other launchers.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.job_options import NOTHING_ASKED, JobOptions
from hvd_elastic_keras.settings.options import NOTHING, Asked, RunOptions

MASTER = "HVD_ELASTIC_MASTER"
TOKEN = "HVD_ELASTIC_TOKEN"
FINGERPRINT = "HVD_ELASTIC_FINGERPRINT"
WORKER_ID = "HVD_ELASTIC_WORKER_ID"
JOB_DIR = "HVD_ELASTIC_JOB_DIR"
JOB_ID = "HVD_ELASTIC_JOB_ID"
JOINED = "HVD_ELASTIC_JOINED"
KEEPER_PID = "HVD_ELASTIC_KEEPER_PID"
MASTER_TIMEOUT = "HVD_ELASTIC_MASTER_TIMEOUT"
IFACE = "HVD_ELASTIC_IFACE"
HOSTNAME = "HVD_ELASTIC_HOSTNAME"
GLOO_TIMEOUT = "HVD_ELASTIC_GLOO_TIMEOUT"
TIMELINE = "HVD_ELASTIC_TIMELINE"
OPTIONS = "HVD_ELASTIC_OPTIONS"
RUN_PREFIX = "HVD_ELASTIC_RUN_"
RESUMED = "HVD_ELASTIC_RESUMED"
CACHE_HOME = "XDG_CACHE_HOME"
TF_CONFIG = "TF_CONFIG"
KERAS_BACKEND = "KERAS_BACKEND"
BACKEND = "tensorflow"
"""The backend of Keras that this package works with."""
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
POD_NAME = "POD_NAME"
GCP_METADATA = ("GCE_METADATA_HOST", "metadata.google.internal")
AWS_METADATA = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
HASH_SEED = "PYTHONHASHSEED"
INTRA_OP_THREADS = "TF_NUM_INTRAOP_THREADS"

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
GPU_MEMORY = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""Takes GPU memory as needed, not all at once: another worker may be just leaving the GPU."""
NO_GPU = "-1"
"""Value for a worker whose host has too few GPUs. An empty list might be taken for all GPUs."""
SCRATCH_PREFIX = "hvd_elastic-"
"""Start of the name of a worker's directory for temporary files."""
WORKER_DEFAULTS = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
"""Variables of workers, unless the user has set other values."""
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
"""How this package writes a line to the log of a worker."""


def _gloo_timeout_s() -> int:
    return int(os.environ.get(GLOO_TIMEOUT, "30"))


@dataclasses.dataclass(frozen=True)
class WorkerEnvironment:
    """The settings that a launcher passes to a worker process in environment variables."""

    master: str
    token: str = dataclasses.field(repr=False)
    worker_id: str
    job_dir: str
    keeper_pid: int | None = None
    master_timeout_s: float = 600.0
    iface: str = ""
    hostname: str = "localhost"
    gloo_timeout_s: int = dataclasses.field(default_factory=_gloo_timeout_s)
    timeline_dir: str = ""
    options: JobOptions = NOTHING_ASKED
    fingerprint: str = ""
    """Fingerprint of the master's certificate; see `control.Endpoint`."""
    joined: bool = False
    """Whether a joiner has started this process (`run --join`)."""
    slot: int = 0
    """Number of the worker's slot on its host, from 0; no two workers have the same."""
    job_id: str = ""
    """See `files.JOB_ID`."""

    @property
    def job_path(self) -> Path:
        """Directory for checkpoints and results."""
        return Path(self.job_dir)

    def to_variables(self) -> dict[str, str]:
        """Environment variables for the process; `worker_environment` reads them back."""
        variables = {
            MASTER: self.master,
            TOKEN: self.token,
            FINGERPRINT: self.fingerprint,
            WORKER_ID: self.worker_id,
            JOB_DIR: self.job_dir,
            JOB_ID: self.job_id,
            JOINED: str(int(self.joined)),
            IFACE: self.iface,
            HOSTNAME: self.hostname,
            MASTER_TIMEOUT: str(self.master_timeout_s),
            GLOO_TIMEOUT: str(self.gloo_timeout_s),
            TIMELINE: self.timeline_dir,
            OPTIONS: self.options.encode(),
        }
        if self.keeper_pid is not None:
            variables[KEEPER_PID] = str(self.keeper_pid)
        if self.options.seed is not None and not os.environ.get(HASH_SEED):
            variables[HASH_SEED] = str(self.options.seed.number)
        return {**variables, **self._gpu_variables()}

    def _gpu_variables(self) -> dict[str, str]:
        """Returns the variables that select the worker's own GPUs; none if it shares all GPUs."""
        count, of_host = self.options.with_script().gpus_per_worker, visible_gpus()
        if not count:
            return {}
        if self.joined and of_host:  # a batch system has already selected this worker's GPUs
            return GPU_MEMORY
        numbers = range(self.slot * count, (self.slot + 1) * count)
        mine = map(str, numbers) if of_host is None else of_host[numbers.start : numbers.stop]
        return {**GPU_MEMORY, VISIBLE_GPUS: ",".join(mine) or NO_GPU}


def visible_gpus() -> list[str] | None:
    """Returns the GPUs that this process may use, as CUDA reads the variable; None: all."""
    if (visible := os.environ.get(VISIBLE_GPUS)) is None:
        return None
    return list(itertools.takewhile(lambda gpu: gpu not in ("", NO_GPU), visible.split(",")))


def worker_environment() -> WorkerEnvironment | None:
    """Returns this process's settings from its launcher; None if no launcher started it."""
    if MASTER not in os.environ:
        return None
    keeper_pid = os.environ.get(KEEPER_PID)
    return WorkerEnvironment(
        master=os.environ[MASTER],
        token=os.environ[TOKEN],
        worker_id=os.environ[WORKER_ID],
        job_dir=os.environ[JOB_DIR],
        joined=os.environ.get(JOINED) == "1",
        keeper_pid=int(keeper_pid) if keeper_pid else None,
        master_timeout_s=float(os.environ.get(MASTER_TIMEOUT, "600")),
        iface=os.environ.get(IFACE, ""),
        hostname=os.environ.get(HOSTNAME, "localhost"),
        timeline_dir=os.environ.get(TIMELINE, ""),
        options=job_options(),
        fingerprint=os.environ.get(FINGERPRINT, ""),
        job_id=os.environ.get(JOB_ID, ""),
    )


def is_worker() -> bool:
    """Whether a launcher of this package has started this process."""
    return MASTER in os.environ


def text(name: str, default: str = "") -> str:
    """Returns the value of an environment variable."""
    return os.environ.get(name, default)


def number(name: str) -> int:
    """Returns the value of an environment variable that holds a whole number; 0 if it does not."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0


def in_cluster() -> bool:
    """Whether this process runs in a pod."""
    return IN_CLUSTER in os.environ


def pod_name() -> str:
    """Returns the name of this process's pod; empty if the environment does not tell it."""
    return os.environ.get(POD_NAME, "")


def tf_config() -> str:
    """Returns `TF_CONFIG`, which names the processes of TensorFlow's strategies; empty if unset."""
    return os.environ.get(TF_CONFIG, "")


def metadata_service(variable: str, default: str) -> str:
    """Returns the address of a cloud's metadata service.

    The clouds' own libraries read the same variable.
    """
    return os.environ.get(variable) or default


def job_options() -> JobOptions:
    """Returns the options that the job sets for all trainings of this process.

    Raises:
      ConfigurationError: the variable does not hold options.
    """
    text = os.environ.get(OPTIONS, "")
    return JobOptions.decode(text) if text else NOTHING_ASKED


def run_options(asked: Asked = NOTHING) -> RunOptions:
    """Returns the options that apply in this process, given the options that a script asks for.

    Raises:
      ConfigurationError: as `job_options` and `JobOptions.with_script`.
    """
    return job_options().with_script(asked)


def cache_dir() -> Path:
    """Returns the directory for files that this package can make again."""
    try:
        base = Path(home) if (home := os.environ.get(CACHE_HOME)) else Path.home() / ".cache"
    except RuntimeError:  # in a container, a user may have no home
        base = Path(tempfile.gettempdir())
    return base / "hvd_elastic_keras"


def intra_op_threads() -> int | None:
    """Returns how many threads share a TensorFlow operation; None: all processors."""
    return number(INTRA_OP_THREADS) or None


def threads_variables(count: int) -> dict[str, str]:
    """Returns the variables that set how many threads share an operation.

    They are for TensorFlow and for libraries beside it.
    """
    return dict.fromkeys((INTRA_OP_THREADS, "OMP_NUM_THREADS"), str(count))


def worker_variables(threads: int, *, keeps_threads: bool) -> dict[str, str]:
    """Returns the environment that all workers of a host have in common: they share its cores.

    Args:
      threads: threads that share a TensorFlow operation of a worker.
      keeps_threads: whether `threads` overrides the user's environment.
    """
    variables = threads_variables(threads)
    fixed = variables if keeps_threads else {}
    return child_environment(fixed, {**WORKER_DEFAULTS, **variables})


def refuse_other_backend() -> None:
    """Refuses a backend of Keras that the environment chooses, before Keras is imported.

    Raises:
      ConfigurationError: it is not TensorFlow.
    """
    chosen = os.environ.get(KERAS_BACKEND, BACKEND)
    if chosen != BACKEND:
        raise ConfigurationError(
            f"{KERAS_BACKEND}={chosen} is set, expected {BACKEND}. Run: export "
            f"{KERAS_BACKEND}={BACKEND}"
        )


def variables_named(names: Iterable[str]) -> dict[str, str]:
    """Returns the named environment variables of this process that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def variables_beginning(prefix: str) -> dict[str, str]:
    """Returns the environment variables of this process whose names begin with a prefix."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


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
    """Returns this process's environment for a child, with `extra`, and `defaults` where unset."""
    return {**defaults, **os.environ, **extra}


def remove_scratch() -> None:
    """Removes this worker's directory for temporary files, as the launcher may be gone."""
    directory = Path(tempfile.gettempdir())
    if directory.name.startswith(SCRATCH_PREFIX):
        shutil.rmtree(directory, ignore_errors=True)
