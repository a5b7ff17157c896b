"""Command line that starts an elastic job (`python -m hvd_elastic_keras.run --help`).

    python -m hvd_elastic_keras.run --model=resnet50
    python -m hvd_elastic_keras.run --model=path/to/my_model.py --num_workers=4 --epochs=10
    python -m hvd_elastic_keras.run --num_workers=4 script.py --script_flag=1

The last form runs a script that trains by itself, with `ElasticCallback`, `Trainer` or
`hvd_elastic_keras.elastic`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from hvd_elastic_keras import command_line, env, files, job_runner, model_location
from hvd_elastic_keras.config import (
    BALANCES,
    BATCHES,
    DEFAULT_GLOBAL_BATCH_SIZE,
    DEFAULT_LR_WARM_UP_STEPS,
    LR_SCALINGS,
    PER_WORKER,
    JobConfig,
    JobSpec,
    TrainingConfig,
)
from hvd_elastic_keras.errors import ConfigurationError, ElasticError

_DEFAULT_JOB = JobConfig()
_MODEL = flags.DEFINE_string(
    "model",
    model_location.DEFAULT_MODEL,
    "What to train: a name in the model zoo, a dotted module, or the path of a .py file.",
)
_CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Reference configuration of the model: a name (configs/<name>.py beside the model) or a path. "
    "Single values are set with --config.<name>=<value>.",
)
_NUM_WORKERS = flags.DEFINE_integer(
    "num_workers",
    _DEFAULT_JOB.num_workers,
    "Workers to start with and to keep up, warm spares included.",
    lower_bound=1,
)
_MIN_WORKERS = flags.DEFINE_integer(
    "min_workers", _DEFAULT_JOB.min_workers, "Below this number the job waits.", lower_bound=1
)
_MAX_WORKERS = flags.DEFINE_integer(
    "max_workers",
    None,
    "Most workers that the job may have, started and added ones. Those beyond the number of "
    "micro-batches wait as warm spares, which take over when a worker fails. "
    "Default: twice --num_workers, but at least 16.",
    lower_bound=1,
)
_MAX_RESTARTS = flags.DEFINE_integer(
    "max_restarts",
    _DEFAULT_JOB.max_restarts,
    "Replacements for failed workers in the whole job.",
    lower_bound=0,
)
_GLOBAL_BATCH_SIZE = flags.DEFINE_integer(
    "global_batch_size",
    None,
    "Examples per optimizer step, whatever the number of workers; with --batch=per_worker, of "
    "the batch that the learning rate belongs to. "
    f"Default: the configuration's, else {DEFAULT_GLOBAL_BATCH_SIZE}.",
)
_MICRO_BATCH_SIZE = flags.DEFINE_integer(
    "micro_batch_size",
    None,
    "Examples per forward and backward pass; divides the global batch, or with --batch=per_worker "
    "that of a worker. "
    "Default: the configuration's, else 1/8 of the global batch.",
    lower_bound=1,
)
_EPOCHS = flags.DEFINE_integer(
    "epochs", None, "Passes over the data. Default: the configuration's, else 1."
)
_STEPS = flags.DEFINE_integer(
    "steps", None, "Optimizer steps in all. With --epochs, whichever comes first ends training."
)
_SEED = flags.DEFINE_integer(
    "seed", None, "Initial weights, order of examples and dropout follow from it. Default: 0."
)
_DETERMINISTIC = flags.DEFINE_boolean(
    "deterministic",
    None,
    "Weights that are bit-identical whatever the number of workers, kills and joins; also for "
    "scripts. Each operation has one thread then. Default: the configuration's, else off.",
)
_DROP_REMAINDER = flags.DEFINE_boolean(
    "drop_remainder",
    None,
    "Leave out the last step of an epoch if its batch would be smaller; with --batch=per_worker, "
    "the last batch of a worker, so that fewer workers may take part in the last step. "
    "Default: the configuration's, else off.",
)
_SKIP_CORRUPT = flags.DEFINE_boolean(
    "skip_corrupt",
    None,
    "Leave out corrupt records of TFRecord files, with a warning, in place of an error; also for "
    "scripts. Default: the configuration's, else off.",
)
_BALANCE = flags.DEFINE_enum(
    "balance",
    None,
    BALANCES,
    "How the micro-batches of a global batch are divided: evenly, or so that persistently slower "
    "workers get fewer; also for scripts. Default: the configuration's, else even.",
)
_AUDIT = flags.DEFINE_boolean(
    "audit",
    None,
    "Write for each epoch which examples were used in which step, by whom, and whether each was "
    "used exactly once, to --job_dir/ledger; also for scripts. `ctl audit` judges it anew. "
    "Default: the configuration's, else off.",
)
_BATCH = flags.DEFINE_enum(
    "batch",
    None,
    BATCHES,
    "global: a step has --global_batch_size examples, which the workers share. per_worker: each "
    "worker takes --batch_size_per_worker, so that the batch grows with the workers and the "
    "result depends on their number. Default: the configuration's, else global.",
)
_BATCH_SIZE_PER_WORKER = flags.DEFINE_integer(
    "batch_size_per_worker",
    None,
    "With --batch=per_worker: examples that each worker takes per step; a multiple of "
    "--micro_batch_size. Default: the configuration's, else the global batch divided by "
    "--num_workers.",
    lower_bound=1,
)
_LR_SCALING = flags.DEFINE_enum(
    "lr_scaling",
    None,
    LR_SCALINGS,
    "With --batch=per_worker: the model's learning rate belongs to a batch of --global_batch_size; "
    "for k times that batch it is multiplied by k (linear), by the square root of k (sqrt), or not "
    "(none). The last step of an epoch has the same rate, though its batch may be smaller. "
    "Default: the configuration's, else linear.",
)
_LR_WARM_UP_STEPS = flags.DEFINE_integer(
    "lr_warm_up_steps",
    None,
    "With --batch=per_worker: steps over which the learning rate gets to a larger value when the "
    "batch has grown; a smaller one is taken at once. Default: the configuration's, else "
    f"{DEFAULT_LR_WARM_UP_STEPS}.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", "", "Directory of the data, for models that read any (tensorflow-datasets)."
)
_JOB_DIR = flags.DEFINE_string(
    "job_dir",
    "",
    "Logs, events, checkpoints and results. A directory that holds checkpoints is gone on with. "
    "Default: a new directory under ./jobs.",
)
_HEARTBEAT_TIMEOUT_S = flags.DEFINE_float(
    "heartbeat_timeout_s",
    _DEFAULT_JOB.heartbeat_timeout_s,
    "A worker that is silent for so many seconds is ended and replaced.",
    lower_bound=3.0,
)
_ENTER_TIMEOUT_S = flags.DEFINE_float(
    "enter_timeout_s",
    _DEFAULT_JOB.enter_timeout_s,
    "How many seconds a round waits for a called worker before it goes on without it. "
    "Must be longer than a step.",
    lower_bound=1.0,
)
_WAIT_TIMEOUT_S = flags.DEFINE_float(
    "wait_timeout_s",
    _DEFAULT_JOB.wait_timeout_s,
    "How many seconds a job below --min_workers waits before it fails.",
    lower_bound=0.0,
)

_TIMELINE = flags.DEFINE_string(
    "timeline",
    "",
    "Write a trace of the job, from this start on, to this file for chrome://tracing or "
    "ui.perfetto.dev: "
    "Horovod's timelines of all rounds, and every change of membership.",
)

GROWTH_FLAGS = (_BATCH_SIZE_PER_WORKER, _LR_SCALING, _LR_WARM_UP_STEPS)
TRAINING_FLAGS = (
    _GLOBAL_BATCH_SIZE,
    _MICRO_BATCH_SIZE,
    _EPOCHS,
    _STEPS,
    _SEED,
    _DROP_REMAINDER,
    _BATCH,
    *GROWTH_FLAGS,
)


def training_config(config: dict[str, Any]) -> TrainingConfig:
    """Flags, where given, before values of the reference configuration, before defaults."""
    values: dict[str, Any] = {f.name: config[f.name] for f in TRAINING_FLAGS if f.name in config}
    values.update({f.name: f.value for f in TRAINING_FLAGS if f.value is not None})
    values["deterministic"] = _is_deterministic(config)
    values["balance"] = _balance(config)
    values["audit"] = _is_audited(config)
    if _STEPS.value is not None and _EPOCHS.value is None:
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
    workers: int = _NUM_WORKERS.value
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
    path = Path(_JOB_DIR.value, files.JOB)
    return JobSpec.load(path) if _JOB_DIR.value and path.exists() else None


def _refuse_growth_flags() -> None:
    given = [f"--{f.name}" for f in GROWTH_FLAGS if f.value is not None]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} was given without --batch=per_worker, which alone has use for it. "
            "Add that, or leave it out."
        )


def _is_deterministic(config: dict[str, Any]) -> Any:
    """As for other values; without any, what the environment says."""
    if _DETERMINISTIC.value is not None:
        return _DETERMINISTIC.value
    return config.get(_DETERMINISTIC.name, env.deterministic())


def _balance(config: dict[str, Any]) -> Any:
    return _BALANCE.value or config.get(_BALANCE.name, env.balance())


def _is_audited(config: dict[str, Any]) -> Any:
    return _AUDIT.value if _AUDIT.value is not None else config.get(_AUDIT.name, env.audit())


def _skips_corrupt(config: dict[str, Any]) -> bool:
    value = config.get(_SKIP_CORRUPT.name, env.skip_corrupt())
    return bool(value if _SKIP_CORRUPT.value is None else _SKIP_CORRUPT.value)


def job_config() -> JobConfig:
    """The number of workers and the master's patience, from flags."""
    return JobConfig(
        num_workers=_NUM_WORKERS.value,
        min_workers=_MIN_WORKERS.value,
        max_workers=_MAX_WORKERS.value or max(_DEFAULT_JOB.max_workers, 2 * _NUM_WORKERS.value),
        max_restarts=_MAX_RESTARTS.value,
        heartbeat_timeout_s=_HEARTBEAT_TIMEOUT_S.value,
        enter_timeout_s=_ENTER_TIMEOUT_S.value,
        wait_timeout_s=_WAIT_TIMEOUT_S.value,
    )


def _check_workers_fit(job: JobConfig, training: TrainingConfig) -> None:
    """Workers beyond the micro-batches are spares, but a job that needs them would never begin."""
    useful = training.num_micro_batches
    if training.batch_grows or job.min_workers <= useful:
        return
    raise ConfigurationError(
        f"min_workers={job.min_workers} was given, but a global batch of "
        f"{training.global_batch_size} is cut into only {useful} micro-batches of "
        f"{training.micro_batch_size}, so that no more than {useful} workers train at a time. Use "
        f"--micro_batch_size={_finer_cut(training, job.min_workers)}."
    )


def _finer_cut(training: TrainingConfig, num_workers: int) -> int:
    size = training.global_batch_size
    return next(m for m in range(max(1, size // num_workers), 0, -1) if size % m == 0)


def _job_dir(name: str) -> Path:
    if _JOB_DIR.value:
        return Path(_JOB_DIR.value).resolve()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("jobs", f"{name}-{stamp}-{os.getpid()}").resolve()


def _start(arguments: Sequence[str]) -> int:
    script = list(arguments[1:])
    job = job_config()
    config = _CONFIG.value.to_dict() if _CONFIG.value is not None else {}
    if script:
        given = [f"--{f.name}" for f in (*TRAINING_FLAGS, _MODEL) if flags.FLAGS[f.name].present]
        exists = Path(script[0]).is_file()
        if not exists and flags.FLAGS["model"].present:
            raise ConfigurationError(
                f"{script[0]} was given, expected flags only together with --model. Leave it out."
            )
        if given:
            raise ConfigurationError(
                f"{', '.join(given)} was given together with the script {script[0]}, which decides "
                "these by itself (the arguments of fit, or TrainingConfig). Give them to the "
                "script, or use --model."
            )
        if not exists:
            raise ConfigurationError(
                f"There is no script {script[0]}. To train a model, use --model={script[0]}."
            )
        spec = None
        name = Path(script[0]).stem
    else:
        training = training_config(config)
        _check_workers_fit(job, training)
        spec = JobSpec(training, _MODEL.value, _DATA_DIR.value, config)
        name = model_location.short_name(_MODEL.value)
    request = job_runner.JobRequest(
        job,
        spec,
        script,
        _job_dir(name),
        name,
        deterministic=spec.training.deterministic if spec else _is_deterministic({}),
        balance=spec.training.balance if spec else _balance({}),
        audit=spec.training.audit if spec else _is_audited({}),
        skip_corrupt=_skips_corrupt(config),
        timeline=Path(_TIMELINE.value).resolve() if _TIMELINE.value else None,
    )
    return asyncio.run(job_runner.run_job(request))


def _main(arguments: Sequence[str]) -> int:
    try:
        return _start(arguments)
    except ElasticError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before any worker was started", file=sys.stderr)
        return 130


def takes_value(name: str) -> bool:
    """Whether the argument after the flag `--name` is its value."""
    if name.startswith("config."):
        return True
    return name in flags.FLAGS and not flags.FLAGS[name].boolean


def main() -> None:
    """Parses the command line and runs the job to its end."""
    sys.path.insert(0, "")
    flags.FLAGS.set_gnu_getopt(False)
    try:
        sys.argv = model_location.with_config_path(sys.argv, takes_value)
    except ElasticError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    app.run(_main, flags_parser=command_line.parse_flags)


if __name__ == "__main__":
    main()
