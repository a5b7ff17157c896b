"""The flags of `run`, and the values that follow from them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from absl import flags
from ml_collections import config_flags

from hvd_elastic_keras.cli.checks import machine
from hvd_elastic_keras.cli.flags import find_model, join_flags, settings
from hvd_elastic_keras.common import files, host_port
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.observe.console import Verbosity
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.settings.option import Option, definitions
from hvd_elastic_keras.settings.options import AUTO, RunOptions, given
from hvd_elastic_keras.settings.training_config import (
    DEFAULT_GLOBAL_BATCH_SIZE,
    PER_WORKER,
    TrainingConfig,
)

Flag: TypeAlias = flags.FlagHolder[Any]


def defined(config: type, *, may_be_unset: bool) -> dict[str, Flag]:
    """Defines a flag for each option of a configuration; returns the flags by name.

    Args:
      may_be_unset: whether a reference configuration decides if the flag is not given.
    """
    defaults = config()
    return {
        name: _defined(name, *definition, getattr(defaults, name), may_be_unset)
        for name, definition in definitions(config).items()
    }


def _defined(name: str, kind: type, option: Option, default: Any, may_be_unset: bool) -> Flag:
    text, value = option.help, default
    if may_be_unset or option.default:
        words = default_in_words(option, default, may_be_unset=may_be_unset)
        text, value = f"{text} Default: {words}.", None
    if option.choices:
        return flags.DEFINE_enum(name, value, option.choices, text)
    if kind is bool:
        return flags.DEFINE_boolean(name, value, text)
    if kind is str:
        return flags.DEFINE_string(name, value, text)
    if option.may_be_auto:
        parser = _NumberOrAuto(lower_bound=option.least)
        return flags.DEFINE(parser, name, value, text, serializer=flags.ArgumentSerializer())
    define = flags.DEFINE_integer if kind is int else flags.DEFINE_float
    return define(name, value, text, lower_bound=option.least)


class _NumberOrAuto(flags.IntegerParser):  # type: ignore[misc]  # absl is untyped
    """Parses a number, or `AUTO`."""

    def parse(self, argument: Any) -> Any:
        """Returns `AUTO` or a number.

        Raises:
          ValueError: it is neither.
        """
        if argument == AUTO:
            return AUTO
        try:
            return super().parse(argument)
        except ValueError as error:
            raise ValueError(f"expected a number of at least 1, or {AUTO}") from error


def default_in_words(option: Option, default: Any, *, may_be_unset: bool) -> str:
    """Returns the default of an option in words; see `defined`.

    >>> default_in_words(Option("Write a ledger."), False, may_be_unset=True)
    "the configuration's, else off"
    >>> default_in_words(Option("Wait."), 1800.0, may_be_unset=False)
    '1800'
    """
    if option.default:
        words = option.default
    elif isinstance(default, bool):
        words = "on" if default else "off"
    else:
        words = f"{default:g}" if isinstance(default, float) else str(default)
    return f"the configuration's, else {words}" if may_be_unset else words


MODEL = flags.DEFINE_string(
    "model",
    find_model.DEFAULT_MODEL,
    "What to train: a name in the model zoo, a dotted module, or the path of a .py file.",
)
MODULE = flags.DEFINE_boolean(
    "module",
    False,
    "The script is named as a module, and run as `python -m` runs it. Short: -m package.train.",
)
try:
    CONFIG = config_flags.DEFINE_config_file(
        "config",
        None,
        "Reference configuration of the model: a name (configs/<name>.py beside the model) or a "
        "path. Single values are set with --config.<name>=<value>. Or FILE.toml, which has values "
        "of flags; one of each may be given. The command line counts before a script, this before "
        "the file, and this before an environment variable HVD_ELASTIC_RUN_<FLAG>.",
    )
except flags.Error as error:  # it already reads the command line, with the file of --flagfile
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
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
    "Start the job of --job_dir again, with the command it was started with. Flags typed beside "
    "--resume count before those of that command. Workers that a killed launcher has left are "
    "taken over in the midst of their training.",
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

ALL_OUTPUT = flags.DEFINE_boolean(
    "all_output",
    False,
    "Show what all workers print, not only rank 0. Each worker's output is also in a file of its "
    "own, --job_dir/logs/<worker>.log.",
)
QUIET = flags.DEFINE_boolean(
    "quiet",
    False,
    "Show nothing but warnings, errors, changes of membership, and how the job has ended.",
)
VERBOSE = flags.DEFINE_boolean(
    "verbose",
    False,
    "Show what all workers print, as --all_output does, and lines of the progress also on a "
    "terminal, where it is drawn.",
)
FLAGS = defined(RunOptions, may_be_unset=True)
"""Those of `RunOptions`, which reach scripts, too."""
TRAINING_FLAGS = defined(TrainingConfig, may_be_unset=True)
GROWTH_FLAGS = ("batch_size_per_worker", "lr_scaling", "lr_warm_up_steps")
"""Names of the flags that have an effect only with --batch=per_worker."""
JOB_FLAGS = defined(JobConfig, may_be_unset=False)


def training_config(config: dict[str, Any]) -> TrainingConfig:
    """Returns the configuration of a training.

    A flag counts before the reference configuration, and this before a default.
    """
    values: dict[str, Any] = {n: config[n] for n in TRAINING_FLAGS if n in config}
    asked = {name: f.value for name, f in TRAINING_FLAGS.items() if f.value is not None}
    values |= asked
    if "steps" in asked and "epochs" not in asked:
        values["epochs"] = None
    if values.get("batch") == PER_WORKER:
        if "batch_size_per_worker" not in values:
            values["batch_size_per_worker"] = _even_batch_size(values)
    else:
        _refuse_growth_flags()
        if config.get("batch") == PER_WORKER:
            # The command line overrides "per_worker", so ignore values that need it.
            values = {k: v for k, v in values.items() if k not in GROWTH_FLAGS}
    return TrainingConfig(**values)


def _even_batch_size(values: dict[str, Any]) -> int:
    """Returns the batch size per worker if the first workers share the global batch evenly.

    A job that continues keeps the size that it has started with.
    """
    before = _spec_before()
    if before is not None and before.training.batch == PER_WORKER:
        return before.training.batch_size_per_worker
    workers = num_workers()
    size = values.get("global_batch_size", DEFAULT_GLOBAL_BATCH_SIZE)
    if not isinstance(size, int) or size < 1:
        return 0  # `TrainingConfig` refuses the size
    if size % workers == 0:
        return size // workers
    choices = [s for s in (size // workers * workers, -(-size // workers) * workers) if s]
    raise ConfigurationError(
        f"--batch=per_worker was given, but global_batch_size={size} is not a multiple of "
        f"num_workers={workers}, so that it does not say what each worker takes. Use "
        f"--global_batch_size={' or '.join(map(str, choices))}, or say it with "
        "--batch_size_per_worker."
    )


def num_workers() -> int:
    """Returns the value of `--num_workers`; for `AUTO`, what this host has room for."""
    value, most = JOB_FLAGS["num_workers"].value, JOB_FLAGS["max_workers"].value
    if value != AUTO:
        return int(value)
    found = machine.workers_of_host(_gpus_of_each())
    return max(min(found, most or found), int(JOB_FLAGS["min_workers"].value))


def _gpus_of_each() -> int:
    """Returns how many GPUs each worker of `--num_workers=auto` gets."""
    return int(FLAGS["gpus_per_worker"].value or 1)


def _spec_before() -> JobSpec | None:
    """Returns the specification of the job in the job directory; None if there is none."""
    path = Path(JOB_DIR.value, files.JOB)
    return JobSpec.load(path) if JOB_DIR.value and path.exists() else None


def _refuse_growth_flags() -> None:
    given = [f"--{name}" for name in GROWTH_FLAGS if TRAINING_FLAGS[name].value is not None]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} was given without --batch=per_worker, which alone has use for it. "
            "Add that, or leave it out."
        )


def job_config() -> JobConfig:
    """Returns the number of workers and the time limits of the master, from flags."""
    values = {name: f.value for name, f in JOB_FLAGS.items()}
    # Free memory says nothing when a job is started again, whose workers still have theirs.
    of_host = machine.most_workers(_gpus_of_each()) if values["num_workers"] == AUTO else 0
    values["num_workers"] = num_workers()
    if not values["max_workers"]:
        values["max_workers"] = max(JobConfig.max_workers, 2 * max(values["num_workers"], of_host))
    if join_flags.MASTER_ONLY.value:
        values["num_workers"] = 0
    awaits = join_flags.MASTER_ONLY.value or not host_port.is_loopback(join_flags.BIND.value)
    return JobConfig(**values, awaits_joiners=awaits)


def given_options(config: Mapping[str, Any], sources: Mapping[str, str]) -> JobOptions:
    """Returns the options of the flags; a reference configuration counts where no flag is given.

    Args:
      config: the values of the reference configuration; some need not be options.
      sources: by flag, the source of its value.

    Raises:
      ConfigurationError: an option cannot have the value given.
    """
    values = {name: f.value for name, f in FLAGS.items() if f.value is not None}
    directory = values.get("checkpoint_dir")
    if directory and "://" not in directory:
        values["checkpoint_dir"] = str(Path(directory).resolve())  # workers may run elsewhere
    typed = {n: v for n, v in values.items() if sources.get(n) == settings.COMMAND_LINE}
    others = {n: v for n, v in values.items() if n not in typed}
    before = env.job_options()
    weakest = {**before.otherwise, **before.command_line}
    if JOB_FLAGS["num_workers"].value == AUTO and machine.gpus_here():
        weakest = {"gpus_per_worker": 1, **weakest}
    return JobOptions(typed, {**weakest, **given(config), **others})


def verbosity() -> Verbosity:
    """Returns how much output is shown, from flags.

    Raises:
      ConfigurationError: flags ask for more and for less output at the same time.
    """
    if QUIET.value and (VERBOSE.value or ALL_OUTPUT.value):
        other = "--verbose" if VERBOSE.value else "--all_output"
        raise ConfigurationError(f"--quiet was given together with {other}. Leave one of them out.")
    if QUIET.value:
        return Verbosity.QUIET
    return Verbosity.VERBOSE if VERBOSE.value else Verbosity.NORMAL
