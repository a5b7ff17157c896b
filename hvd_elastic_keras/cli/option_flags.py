"""The flags of `run` for what reaches all trainings of a job, scripts included: `RunOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absl import flags

from hvd_elastic_keras.cli import checkpoint_flags, gpu_flags, settings
from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.options import (
    BALANCES,
    BATCH_NORMS,
    COMPRESSIONS,
    EXPORTS,
    MICRO_BATCHES,
    ON_NONFINITE,
    JobOptions,
    given,
)

flags.adopt_module_key_flags(checkpoint_flags)
flags.adopt_module_key_flags(gpu_flags)
DETERMINISTIC = flags.DEFINE_boolean(
    "deterministic",
    None,
    "Weights that are bit-identical whatever the number of workers, kills and joins; also for "
    "scripts. Default: the configuration's, else off.",
)
DETERMINISTIC_THREADS = flags.DEFINE_integer(
    "deterministic_threads",
    None,
    "With --deterministic, so many threads share an operation in every worker, whatever its "
    "machine: other numbers give other bits. Default: the configuration's, else 1.",
    lower_bound=1,
)
CHECK_WEIGHTS = flags.DEFINE_integer(
    "check_weights_every_n_steps",
    None,
    "Compare the weights of all workers after every so many steps; one that holds others is named "
    "and replaced. Also for scripts. Default: the configuration's, else 0, which is never.",
    lower_bound=0,
)
SKIP_CORRUPT = flags.DEFINE_boolean(
    "skip_corrupt",
    None,
    "Leave out corrupt records of TFRecord files, with a warning, in place of an error; also for "
    "scripts. Default: the configuration's, else off.",
)
BALANCE = flags.DEFINE_enum(
    "balance",
    None,
    BALANCES,
    "How the micro-batches of a global batch are divided: evenly, or so that persistently slower "
    "workers get fewer; also for scripts. Default: the configuration's, else even.",
)
ON_NONFINITE_LOSS = flags.DEFINE_enum(
    "on_nonfinite",
    None,
    ON_NONFINITE,
    "What to do about a loss that is NaN or infinite: warn, and write no checkpoint meanwhile; "
    "skip the step, also if a gradient is not finite; stop the job there; or ignore it, as Keras "
    "does; also for scripts. Default: the configuration's, else warn.",
)
AUDIT = flags.DEFINE_boolean(
    "audit",
    None,
    "Write for each epoch which examples were used in which step, by whom, and whether each was "
    "used exactly once, to --job_dir/ledger; also for scripts. `ctl audit` judges it anew. "
    "Default: the configuration's, else off.",
)
MICRO_BATCHES_FLAG = flags.DEFINE_enum(
    "micro_batches",
    None,
    MICRO_BATCHES,
    "How a worker computes its micro-batches: together in one pass until memory runs out, or in a "
    "loop, one after the other, which takes less memory and up to twice the time. auto: together, "
    "but in a loop with --balance=speed, or with a GPU and a micro_batch_size of one's own. Also "
    "for scripts. Default: the configuration's, else auto.",
)
MICRO_BATCHES_TOGETHER = flags.DEFINE_integer(
    "micro_batches_together",
    None,
    "So many micro-batches, at most, are computed in one pass, for memory's sake; also for "
    "scripts. Default: the configuration's, else 0, which is any number.",
    lower_bound=0,
)
COMPRESSION = flags.DEFINE_enum(
    "compression",
    None,
    COMPRESSIONS,
    "How gradients travel between the workers: as they are, or rounded to 16 bits, which takes "
    "half of the time on a slow network; also for scripts. Default: the configuration's, else "
    "none.",
)
BATCH_NORM = flags.DEFINE_enum(
    "batch_norm",
    None,
    BATCH_NORMS,
    "What batch normalisation normalises over in training: each micro-batch by itself, or the "
    "whole batch of all workers, as plain Keras does, with more rounds of collectives in a step; "
    "also for scripts. Default: the configuration's, else micro_batch.",
)
EXPLAIN_STEP = flags.DEFINE_boolean(
    "explain_step",
    None,
    "Show before the first step how several workers share it: each collective with its bytes and "
    "the operation that needs it, and what every worker computes whole; also for scripts. "
    "Default: the configuration's, else off.",
)
CHECK_STEP = flags.DEFINE_boolean(
    "check_step",
    None,
    "Check before the first step that three workers come to the numbers of one, operation by "
    "operation, with the first batch, in the memory of one worker; also for scripts. Default: the "
    "configuration's, else off.",
)
EXPORT = flags.DEFINE_enum(
    "export",
    None,
    EXPORTS,
    "Write the trained model at the end for serving, too, to --job_dir/saved_model, as "
    "Model.export does; also for scripts. Default: the configuration's, else none.",
)
TENSORBOARD = flags.DEFINE_boolean(
    "tensorboard",
    None,
    "Write the job's course for TensorBoard, to --job_dir/tensorboard: loss and metrics, learning "
    "rate, speed, workers, and each change of membership. It goes on whoever is rank 0. "
    "Default: the configuration's, else off.",
)
ALL = (
    *(DETERMINISTIC, DETERMINISTIC_THREADS, BALANCE, AUDIT, ON_NONFINITE_LOSS, CHECK_WEIGHTS),
    *(SKIP_CORRUPT, MICRO_BATCHES_FLAG, MICRO_BATCHES_TOGETHER, COMPRESSION, EXPORT, TENSORBOARD),
    *(BATCH_NORM, EXPLAIN_STEP, CHECK_STEP),
    *(*checkpoint_flags.ALL, gpu_flags.GPUS_PER_WORKER),
)


def given_options(config: Mapping[str, Any], sources: Mapping[str, str]) -> JobOptions:
    """What the flags ask for, and a reference configuration where they do not say.

    Args:
      config: the values of the configuration, of which some may be no options.
      sources: by flag, where its value has come from.

    Raises:
      ConfigurationError: a value is none of an option.
    """
    values = {f.name: f.value for f in ALL if f.value is not None}
    values |= checkpoint_flags.absolute_directory()
    typed = {n: v for n, v in values.items() if sources.get(n) == settings.COMMAND_LINE}
    others = {n: v for n, v in values.items() if n not in typed}
    before = env.job_options()
    weakest = {**before.otherwise, **before.command_line}
    return JobOptions(typed, {**weakest, **given(config), **others})
