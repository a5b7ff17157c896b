"""Options of a whole job that reach everything it trains, scripts included.

`python -m hvd_elastic_keras.run` has a flag of the same name for each; for some, `TrainingConfig`
and `ElasticCallback` have an argument, too. The first of these that gives an option counts:

1. the command line
2. the script
3. the file of `--config=FILE.toml`
4. the environment
5. the model's reference configuration
6. the default

If a source does not give an option, the option is missing from its values, or is `UNSET`; a source
never holds defaults. The options of the job travel to the workers as one JSON value
(`HVD_ELASTIC_OPTIONS`, `JobOptions` in
`job_options.py`). `Trainer` and `ElasticCallback` add the options of the
script. To add an option, add a field to `RunOptions` and use it: its flag, help text, check and row
of `docs/reference.md` follow from that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET

from hvd_elastic_keras.common.errors import ConfigurationError, require
from hvd_elastic_keras.settings.option import CHECKS_OF_TYPES, Option, definitions

EVEN = "even"
SPEED = "speed"
BALANCES = (EVEN, SPEED)
"""Ways to divide micro-batches among the workers."""
IGNORE = "ignore"
WARN = "warn"
SKIP = "skip"
STOP = "stop"
ON_NONFINITE = (IGNORE, WARN, SKIP, STOP)
"""Reactions to a loss that is NaN or infinite."""
AUTO = "auto"
LOOP = "loop"
TOGETHER = "together"
MICRO_BATCHES = (AUTO, LOOP, TOGETHER)
"""Ways in which a worker computes the micro-batches of a step."""
NO_COMPRESSION = "none"
FP16 = "fp16"
BF16 = "bf16"
COMPRESSIONS = (NO_COMPRESSION, FP16, BF16)
"""Formats of gradients between the workers: unchanged, or rounded to 16 bits."""
MICRO_BATCH = "micro_batch"
BATCH = "batch"
BATCH_NORMS = (AUTO, MICRO_BATCH, BATCH)
"""Batches over which batch normalisation normalises in training."""
NO_EXPORT = "none"
SAVED_MODEL = "saved_model"
EXPORTS = (NO_EXPORT, SAVED_MODEL)
"""Formats written at the end, in addition to the model as Keras saves it."""
KEEP_CHECKPOINTS = 2
"""The newest checkpoint, and the one before it in case the newest is damaged."""
METRIC = re.compile(r"([^:]+(:(min|max))?)?")
"""What `keep_best` may be."""
Asked: TypeAlias = Mapping[str, Any]
"""Options by name that one source gives. A missing name, or `UNSET`, means not given."""
NOTHING: Asked = {}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that hold for all trainings of a job.

    Raises:
      ConfigurationError: an option cannot have the value given.
    """

    deterministic: Annotated[
        bool,
        Option(
            "The weights are bit-identical for any number of workers, kills and joins.",
            more="See [deterministic.md](deterministic.md).",
        ),
    ] = False
    deterministic_threads: Annotated[
        int,
        Option(
            "With --deterministic: threads that share an operation, in every worker, on any "
            "machine. Another number gives other bits.",
            least=1,
            more="See [deterministic.md](deterministic.md).",
        ),
    ] = 1
    balance: Annotated[
        str,
        Option(
            "How the micro-batches of a global batch are divided: evenly, or by speed, so that "
            "workers that stay slower compute fewer.",
            choices=BALANCES,
        ),
    ] = EVEN
    audit: Annotated[
        bool,
        Option(
            "Write for each epoch which examples were used in which step, by which worker, and "
            "whether each was used exactly once, to --job_dir/ledger. `ctl audit` judges it anew.",
        ),
    ] = False
    on_nonfinite: Annotated[
        str,
        Option(
            "What to do about a loss that is NaN or infinite: warn, and write no checkpoint "
            "meanwhile; skip the step, also if a gradient is not finite; stop the job there, on "
            "all workers; or ignore it, as Keras does.",
            choices=ON_NONFINITE,
            more="A step that is skipped changes nothing: no weights, no metrics, not the "
            "optimizer's count of steps. 100 skipped steps in a row end the job. Gradients are "
            "left to a `LossScaleOptimizer`. Not for a loop of your own.",
        ),
    ] = WARN
    micro_batches: Annotated[
        str,
        Option(
            "How a worker computes its micro-batches: together in one pass until memory runs out, "
            "or in a loop, one after the other, which takes less memory and more time. "
            "auto: together, but in a loop with --balance=speed, or with a GPU and a "
            "micro_batch_size of your own.",
            choices=MICRO_BATCHES,
            more="See [In one pass](#in-one-pass).",
        ),
    ] = AUTO
    micro_batches_together: Annotated[
        int,
        Option(
            "Compute at most this many micro-batches in one pass, to save memory. 0: any number.",
            least=0,
        ),
    ] = 0
    compression: Annotated[
        str,
        Option(
            "How gradients travel between the workers: as they are, or rounded to 16 bits, which "
            "halves the bytes on the network.",
            choices=COMPRESSIONS,
            more="A loop of your own has `hvd.Compression`. See [slow networks](#slow-networks).",
        ),
    ] = NO_COMPRESSION
    batch_norm: Annotated[
        str,
        Option(
            "The examples over which batch normalisation normalises in training: the whole batch "
            "of all workers, as plain Keras does, with one more round of collectives forward and "
            "one backward for each layer, or each micro-batch by itself. auto: with fit the whole "
            "batch, if a step may have several rounds; with --model or Trainer each micro-batch.",
            choices=BATCH_NORMS,
            more="`--deterministic` refuses the whole batch. See "
            "[exactness.md](exactness.md#batch-norm).",
        ),
    ] = AUTO
    explain_step: Annotated[
        bool,
        Option(
            "Show before the first step how several workers share it: each collective with its "
            "bytes and the operation that needs it, and what every worker computes whole.",
            more="With `--dry_run` and `--model`, without a job.",
        ),
    ] = False
    check_step: Annotated[
        bool,
        Option(
            "Check before the first step, with the first batch, that three workers come to the "
            "numbers of one in every operation.",
            more="The memory of a worker has to hold the batch several times, and the Python code "
            "of the step runs more than once.",
        ),
    ] = False
    check_weights_every_n_steps: Annotated[
        int,
        Option(
            "Steps between two comparisons of checksums of all that the workers hold. A worker "
            "that differs is named, ends, and is replaced. 0: never.",
            least=0,
            more="A comparison takes one pass over the state. Workers on processors of different "
            "types may differ by rounding. Not for a loop of your own.",
        ),
    ] = 0
    skip_corrupt: Annotated[
        bool,
        Option(
            "Leave out corrupt records of TFRecord files, with a warning, in place of an error."
        ),
    ] = False
    checkpoint_every_n_epochs: Annotated[
        int,
        Option(
            "Epochs between two checkpoints. 0: never. A checkpoint is written in the background, "
            "whenever this, --checkpoint_every_n_steps or --checkpoint_every_minutes is due.",
            least=0,
        ),
    ] = 1
    checkpoint_every_n_steps: Annotated[
        int,
        Option(
            "Steps between two checkpoints, or commits in a loop of your own. 0: never. 1: the "
            "next one begins when the last one is written.",
            least=0,
            more="See [checkpoints.md](checkpoints.md).",
        ),
    ] = 0
    checkpoint_every_minutes: Annotated[
        float,
        Option("Minutes between two checkpoints. 0: never.", least=0),
    ] = 0.0
    keep_checkpoints: Annotated[
        int, Option("How many checkpoints, the newest, are kept.", least=1)
    ] = KEEP_CHECKPOINTS
    keep_best: Annotated[
        str,
        Option(
            "Keep the model of the epoch in which this metric was best, such as val_loss, as "
            "best.keras in the job directory. my_metric:max or my_metric:min says which values are "
            "better, if Keras does not know.",
            default="nothing is kept",
            more="See [The best model](checkpoints.md#the-best-model).",
        ),
    ] = ""
    checkpoint_dir: Annotated[
        str,
        Option(
            "Where checkpoints go: a path, or what TensorFlow's file systems reach, such as "
            "gs://bucket/job. For one job at a time.",
            default="--job_dir/checkpoints",
            more="A second job is [refused](checkpoints.md).",
        ),
    ] = ""
    gpus_per_worker: Annotated[
        int,
        Option(
            "How many GPUs of its host a worker sees: those of its slot, which go to its "
            "replacement. 0: all workers see all GPUs.",
            least=0,
            more="Refused where there are fewer. See [gpus.md](gpus.md).",
        ),
    ] = 0
    tensorboard: Annotated[
        bool,
        Option(
            "Write the job's course for TensorBoard, to --job_dir/tensorboard: loss and metrics, "
            "learning rate, speed, workers, and each change of membership, whichever worker is "
            "rank 0.",
            more="Without it, this is done [beside a callback of your "
            "own](dashboard.md#tensorboard).",
        ),
    ] = False
    elastic_fit: Annotated[
        bool,
        Option(
            "Model.fit of a script trains on all workers by itself, without ElasticCallback. "
            "--noelastic_fit: only with it.",
            more="See [fit.md](fit.md). It does not concern a script that uses ElasticCallback, "
            "Trainer, elastic.run or Horovod.",
        ),
    ] = True
    export: Annotated[
        str,
        Option(
            "Write the trained model at the end for serving, too, to --job_dir/saved_model, as "
            "Model.export does.",
            choices=EXPORTS,
        ),
    ] = NO_EXPORT

    def __post_init__(self) -> None:
        for name, (kind, option) in definitions(type(self)).items():
            value = getattr(self, name)
            if kind in CHECKS_OF_TYPES:
                CHECKS_OF_TYPES[kind](name, value)
            option.check(name, value)
        if self.deterministic:
            self._check_deterministic()
        require(
            isinstance(self.keep_best, str) and METRIC.fullmatch(self.keep_best) is not None,
            "keep_best",
            repr(self.keep_best),
            "that is the name of a metric, such as val_loss, or a name with the direction in which "
            "it gets better, such as my_metric:max or my_metric:min",
        )

    def _check_deterministic(self) -> None:
        if self.compression != NO_COMPRESSION:
            raise ConfigurationError(
                f"deterministic was given with compression={self.compression!r}, expected 'none': "
                "what is rounded, and so the bits of the weights, depends on the number of "
                "workers. Leave one of the two out."
            )
        if self.micro_batches == TOGETHER:
            raise ConfigurationError(
                "deterministic was given with micro_batches='together', expected 'loop' or 'auto': "
                "the bits of a sum depend on how many micro-batches are computed in one pass. "
                "Leave one of the two out."
            )

    @classmethod
    def of(cls, *sources: Asked) -> RunOptions:
        """Returns the options that count: each comes from the first source that gives it.

        Names that are no options are ignored, because a configuration may have other values.

        Raises:
          ConfigurationError: an option cannot have its value, or two options exclude each other.
        """
        values: dict[str, Any] = {}
        for source in reversed(sources):
            values |= given(source)
        return cls(**values)

    def replaced(self, values: Asked) -> RunOptions:
        """Returns a copy with other values for some options.

        Raises:
          ConfigurationError: as for the constructor.
        """
        return msgspec.structs.replace(self, **given(values))


def given(source: Asked) -> dict[str, Any]:
    """Returns the options that a source gives; ignores its other values."""
    names = RunOptions.__struct_fields__
    return {n: source[n] for n in names if n in source and source[n] is not UNSET}


NO_OPTIONS = RunOptions()
"""The options of a job for which no source gives any."""
