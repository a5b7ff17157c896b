"""The flags of `run`, and the values that follow from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from hvd_elastic_keras.cli import find_model, join_flags, option_flags, output_flags
from hvd_elastic_keras.common import files, host_port
from hvd_elastic_keras.common.config import (
    BATCHES,
    DEFAULT_GLOBAL_BATCH_SIZE,
    DEFAULT_LR_WARM_UP_STEPS,
    LR_SCALINGS,
    PER_WORKER,
    JobConfig,
    TrainingConfig,
)
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.job_spec import JobSpec

flags.adopt_module_key_flags(option_flags)
flags.adopt_module_key_flags(output_flags)
DEFAULT_JOB = JobConfig()
MODEL = flags.DEFINE_string(
    "model",
    find_model.DEFAULT_MODEL,
    "What to train: a name in the model zoo, a dotted module, or the path of a .py file.",
)
CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Reference configuration of the model: a name (configs/<name>.py beside the model) or a path. "
    "Single values are set with --config.<name>=<value>. Or FILE.toml, which has values of flags; "
    "one of each may be given. The command line counts before a script, this before the file, and "
    "this before an environment variable HVD_ELASTIC_RUN_<FLAG>.",
)
NUM_WORKERS = flags.DEFINE_integer(
    "num_workers",
    DEFAULT_JOB.num_workers,
    "Workers to start with and to keep up, warm spares included.",
    lower_bound=1,
)
MIN_WORKERS = flags.DEFINE_integer(
    "min_workers", DEFAULT_JOB.min_workers, "Below this number the job waits.", lower_bound=1
)
MAX_WORKERS = flags.DEFINE_integer(
    "max_workers",
    None,
    "Most workers that the job may have, started and added ones. Those beyond the number of "
    "micro-batches wait as warm spares, which take over when a worker fails. "
    "Default: twice --num_workers, but at least 16.",
    lower_bound=1,
)
MAX_RESTARTS = flags.DEFINE_integer(
    "max_restarts",
    DEFAULT_JOB.max_restarts,
    "Replacements for failed workers within --restart_window_s.",
    lower_bound=0,
)
RESTART_WINDOW_S = flags.DEFINE_float(
    "restart_window_s",
    DEFAULT_JOB.restart_window_s,
    "Seconds after which a replacement counts no more, if training has gone on since.",
    lower_bound=0.0,
)
GLOBAL_BATCH_SIZE = flags.DEFINE_integer(
    "global_batch_size",
    None,
    "Examples per optimizer step, whatever the number of workers; with --batch=per_worker, of "
    "the batch that the learning rate belongs to. "
    f"Default: the configuration's, else {DEFAULT_GLOBAL_BATCH_SIZE}.",
)
MICRO_BATCH_SIZE = flags.DEFINE_integer(
    "micro_batch_size",
    None,
    "Examples of a micro-batch; divides the global batch, or with --batch=per_worker "
    "that of a worker. "
    "Default: the configuration's, else 1/8 of the global batch, but at least 16 examples if the "
    "model has batch normalisation; with --batch=per_worker, the whole batch of a worker.",
    lower_bound=1,
)
EPOCHS = flags.DEFINE_integer(
    "epochs", None, "Passes over the data. Default: the configuration's, else 1."
)
STEPS = flags.DEFINE_integer(
    "steps", None, "Optimizer steps in all. With --epochs, whichever comes first ends training."
)
SEED = flags.DEFINE_integer(
    "seed", None, "Initial weights, order of examples and dropout follow from it. Default: 0."
)
DROP_REMAINDER = flags.DEFINE_boolean(
    "drop_remainder",
    None,
    "Leave out the last step of an epoch if its batch would be smaller; with --batch=per_worker, "
    "the last batch of a worker, so that fewer workers may take part in the last step. "
    "Default: the configuration's, else off.",
)
BATCH = flags.DEFINE_enum(
    "batch",
    None,
    BATCHES,
    "global: a step has --global_batch_size examples, which the workers share. per_worker: each "
    "worker takes --batch_size_per_worker, so that the batch grows with the workers and the "
    "result depends on their number. Default: the configuration's, else global.",
)
BATCH_SIZE_PER_WORKER = flags.DEFINE_integer(
    "batch_size_per_worker",
    None,
    "With --batch=per_worker: examples that each worker takes per step; a multiple of "
    "--micro_batch_size. Default: the configuration's, else the global batch divided by "
    "--num_workers.",
    lower_bound=1,
)
LR_SCALING = flags.DEFINE_enum(
    "lr_scaling",
    None,
    LR_SCALINGS,
    "With --batch=per_worker: the model's learning rate belongs to a batch of --global_batch_size; "
    "for k times that batch it is multiplied by k (linear), by the square root of k (sqrt), or not "
    "(none). The last step of an epoch has the same rate, though its batch may be smaller. "
    "Default: the configuration's, else linear.",
)
LR_WARM_UP_STEPS = flags.DEFINE_integer(
    "lr_warm_up_steps",
    None,
    "With --batch=per_worker: steps over which the learning rate gets to a larger value when the "
    "batch has grown; a smaller one is taken at once. Default: the configuration's, else "
    f"{DEFAULT_LR_WARM_UP_STEPS}.",
)
DATA_DIR = flags.DEFINE_string(
    "data_dir", "", "Directory of the data, for models that read any (tensorflow-datasets)."
)
INIT_FROM = flags.DEFINE_string(
    "init_from",
    "",
    "Start from these weights: a file of Keras (.keras, .weights.h5), a checkpoint, or the "
    "directory of another job. All hosts with workers need it. A job that is gone on with keeps "
    "its own.",
)
JOB_DIR = flags.DEFINE_string(
    "job_dir",
    "",
    "Logs, events, checkpoints and results. A directory that holds checkpoints is gone on with. "
    "Default: a new directory under ./jobs.",
)
RESUME = flags.DEFINE_boolean(
    "resume",
    False,
    "Start the job of --job_dir again, with the command it was started with. Workers that a killed "
    "launcher has left are taken over in the midst of their training.",
)
DRY_RUN = flags.DEFINE_boolean(
    "dry_run",
    False,
    "Check what can be checked without workers, print the plan of the job, and end. No worker is "
    "started, and no file is left.",
)
TLS = flags.DEFINE_boolean(
    "tls",
    False,
    "Workers and `ctl` speak to the launcher through TLS, with a certificate made for the job. "
    "What Horovod sends between the workers stays plain.",
)
NETWORK_INTERFACE = flags.DEFINE_string(
    "network_interface",
    "",
    "Network interface over which workers talk to each other. "
    "Default: on each host the one that leads to the master.",
)
HEARTBEAT_TIMEOUT_S = flags.DEFINE_float(
    "heartbeat_timeout_s",
    DEFAULT_JOB.heartbeat_timeout_s,
    "A worker that is silent for so many seconds is ended and replaced, unless its process runs.",
    lower_bound=3.0,
)
STALL_TIMEOUT_S = flags.DEFINE_float(
    "stall_timeout_s",
    DEFAULT_JOB.stall_timeout_s,
    "A worker whose callback or input holds the others up for so many seconds is ended and "
    "replaced; people are told after a tenth of it.",
    lower_bound=1.0,
)
START_UP_TIMEOUT_S = flags.DEFINE_float(
    "start_up_timeout_s",
    DEFAULT_JOB.start_up_timeout_s,
    "A worker that has not come to its training so many seconds after its start is ended and "
    "replaced.",
    lower_bound=1.0,
)
MASTER_TIMEOUT_S = flags.DEFINE_float(
    "master_timeout_s",
    DEFAULT_JOB.master_timeout_s,
    "If the launcher is killed, its workers train on for so many seconds, in which the same "
    "command (or --resume) takes them over; then they leave.",
    lower_bound=1.0,
)
ENTER_TIMEOUT_S = flags.DEFINE_float(
    "enter_timeout_s",
    DEFAULT_JOB.enter_timeout_s,
    "How many seconds a round waits for a called worker before it goes on without it. "
    "Must be longer than a step.",
    lower_bound=1.0,
)
WAIT_TIMEOUT_S = flags.DEFINE_float(
    "wait_timeout_s",
    DEFAULT_JOB.wait_timeout_s,
    "How many seconds a job below --min_workers waits before it fails.",
    lower_bound=0.0,
)

TIMELINE = flags.DEFINE_string(
    "timeline",
    "",
    "Write a trace of the job, from this start on, to this file for chrome://tracing or "
    "ui.perfetto.dev: "
    "Horovod's timelines of all rounds, and every change of membership.",
)

DASHBOARD = flags.DEFINE_boolean(
    "dashboard",
    False,
    "Show the address of a page with the job's course, for a browser. It holds the job's token: "
    "who has it can do whatever `ctl` can.",
)
REPORT = flags.DEFINE_boolean(
    "report",
    False,
    "Write the job's course as one page of HTML, --job_dir/report.html, when the job ends.",
)

GROWTH_FLAGS = (BATCH_SIZE_PER_WORKER, LR_SCALING, LR_WARM_UP_STEPS)
TRAINING_FLAGS = (
    GLOBAL_BATCH_SIZE,
    MICRO_BATCH_SIZE,
    EPOCHS,
    STEPS,
    SEED,
    DROP_REMAINDER,
    BATCH,
    *GROWTH_FLAGS,
)


def training_config(config: dict[str, Any]) -> TrainingConfig:
    """Flags, where given, before values of the reference configuration, before defaults."""
    values: dict[str, Any] = {f.name: config[f.name] for f in TRAINING_FLAGS if f.name in config}
    values.update({f.name: f.value for f in TRAINING_FLAGS if f.value is not None})
    if STEPS.value is not None and EPOCHS.value is None:
        values["epochs"] = None
    if values.get("batch") == PER_WORKER:
        if "batch_size_per_worker" not in values:
            values["batch_size_per_worker"] = _even_batch_size(values)
    else:
        _refuse_growth_flags()
        if config.get("batch") == PER_WORKER:
            # The command line has taken that back, and so what only goes with it.
            values = {k: v for k, v in values.items() if k not in {f.name for f in GROWTH_FLAGS}}
    return TrainingConfig(**values)


def _even_batch_size(values: dict[str, Any]) -> int:
    """What each worker takes if those that the job starts with share the global batch.

    A job that goes on keeps what it has started with.
    """
    before = _spec_before()
    if before is not None and before.training.batch == PER_WORKER:
        return before.training.batch_size_per_worker
    workers: int = NUM_WORKERS.value
    size = values.get("global_batch_size", DEFAULT_GLOBAL_BATCH_SIZE)
    if not isinstance(size, int) or size < 1:
        return 0  # `TrainingConfig` refuses it
    if size % workers == 0:
        return size // workers
    choices = [s for s in (size // workers * workers, -(-size // workers) * workers) if s]
    raise ConfigurationError(
        f"--batch=per_worker was given, but global_batch_size={size} is not a multiple of "
        f"num_workers={workers}, so that it does not say what each worker takes. Use "
        f"--global_batch_size={' or '.join(map(str, choices))}, or say it with "
        "--batch_size_per_worker."
    )


def _spec_before() -> JobSpec | None:
    """What the job directory has been used for, if it has."""
    path = Path(JOB_DIR.value, files.JOB)
    return JobSpec.load(path) if JOB_DIR.value and path.exists() else None


def _refuse_growth_flags() -> None:
    given = [f"--{f.name}" for f in GROWTH_FLAGS if f.value is not None]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} was given without --batch=per_worker, which alone has use for it. "
            "Add that, or leave it out."
        )


def job_config() -> JobConfig:
    """The number of workers and the master's patience, from flags."""
    return JobConfig(
        num_workers=0 if join_flags.MASTER_ONLY.value else NUM_WORKERS.value,
        min_workers=MIN_WORKERS.value,
        max_workers=MAX_WORKERS.value or max(DEFAULT_JOB.max_workers, 2 * NUM_WORKERS.value),
        max_restarts=MAX_RESTARTS.value,
        restart_window_s=RESTART_WINDOW_S.value,
        heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S.value,
        stall_timeout_s=STALL_TIMEOUT_S.value,
        start_up_timeout_s=START_UP_TIMEOUT_S.value,
        master_timeout_s=MASTER_TIMEOUT_S.value,
        enter_timeout_s=ENTER_TIMEOUT_S.value,
        wait_timeout_s=WAIT_TIMEOUT_S.value,
        awaits_joiners=join_flags.MASTER_ONLY.value
        or not host_port.is_loopback(join_flags.BIND.value),
    )
