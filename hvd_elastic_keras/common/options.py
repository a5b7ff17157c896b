"""Options of a whole job that reach everything it trains, scripts included.

`python -m hvd_elastic_keras.run` has a flag of the same name for each; for some, `TrainingConfig`
and `ElasticCallback` have an argument, too. The first of these that gives an option counts:

1. the command line
2. the script
3. the file of `--config=FILE.toml`
4. the environment
5. the model's reference configuration
6. the default

What a source does not give is missing from its values, or `UNSET`: a default is no value. What the
job asks for travels to the workers as one JSON value (`HVD_ELASTIC_OPTIONS`, `JobOptions`), and
`Trainer` and `ElasticCallback` add what the script asks for. One more option is a field of
`RunOptions`, a flag in `cli/option_flags.py`, and the place that uses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.requirements import (
    require,
    require_bool,
    require_number,
    require_whole_number,
)

EVEN = "even"
SPEED = "speed"
BALANCES = (EVEN, SPEED)
"""How micro-batches are divided among the workers."""
IGNORE = "ignore"
WARN = "warn"
SKIP = "skip"
STOP = "stop"
ON_NONFINITE = (IGNORE, WARN, SKIP, STOP)
"""What to do about a loss that is NaN or infinite."""
AUTO = "auto"
LOOP = "loop"
TOGETHER = "together"
MICRO_BATCHES = (AUTO, LOOP, TOGETHER)
"""How a worker computes the micro-batches of a step."""
NO_COMPRESSION = "none"
FP16 = "fp16"
BF16 = "bf16"
COMPRESSIONS = (NO_COMPRESSION, FP16, BF16)
"""How gradients travel between the workers: as they are, or rounded to 16 bits."""
MICRO_BATCH = "micro_batch"
BATCH = "batch"
BATCH_NORMS = (MICRO_BATCH, BATCH)
"""What batch normalisation normalises over in training."""
NO_EXPORT = "none"
SAVED_MODEL = "saved_model"
EXPORTS = (NO_EXPORT, SAVED_MODEL)
"""What is written at the end, beside the model as Keras saves it."""
KEEP_CHECKPOINTS = 2
"""One, and the one before it, should it be damaged."""
AT_LEAST_ONE = ("deterministic_threads", "keep_checkpoints")
COMMAND_LINE = "command_line"
"""Holds what the command line gives, in the JSON of `JobOptions`."""
Asked: TypeAlias = Mapping[str, Any]
"""Options by name that one source asks for; `UNSET`, or a name that is missing: not given."""
NOTHING: Asked = {}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for all trainings of a job.

    Attributes:
      deterministic: weights that are bit-identical whatever the number of workers, kills and joins.
      deterministic_threads: so many threads share an operation then, in every process of the job:
        the bits of a sum depend on it.
      balance: "even" shares of each batch, or shares that follow the workers' "speed".
      audit: a ledger of the examples of each step; see `audit/ledger_file.py`.
      on_nonfinite: of a loss that is NaN or infinite, "warn" and write no checkpoint meanwhile;
        "skip" the step, also if a gradient is; "stop" the job there; or "ignore" it.
      micro_batches: a worker computes its micro-batches "together" in one pass until memory runs
        out, or in a "loop", one after the other; "auto" is together, but for the cases of
        `together_of` in `api/assemble.py`.
      micro_batches_together: so many in one pass, at most; 0: any number.
      compression: gradients travel as they are ("none"), or rounded to "fp16" or "bf16".
      batch_norm: normalises over each "micro_batch" by itself, or over the whole "batch" of all
        workers, as plain Keras does, with more rounds of collectives in a step.
      explain_step: shows before the first step how workers share it, and why.
      check_step: checks before the first step that three workers come to the numbers of one, in
        every operation.
      check_weights_every_n_steps: how often the workers compare checksums of all that they hold;
        who differs is replaced. 0: never.
      skip_corrupt: TFRecord sources leave out corrupt records.
      checkpoint_every_n_epochs, checkpoint_every_n_steps, checkpoint_every_minutes: rank 0 writes a
        checkpoint whenever one of these is due; 0 turns it off. Writing goes on in the background.
        What is due meanwhile comes when it is done: with every step, one after the other.
      checkpoint_dir: where checkpoints go: a path, or what TensorFlow's file systems reach, such as
        gs://bucket/job. Empty: to the job directory.
      keep_checkpoints: so many of the newest are kept.
      gpus_per_worker: so many GPUs of its host each worker sees; 0: all.
      tensorboard: the job's course is written for TensorBoard, and for it some steps are timed.
      export: "none", or at the end a "saved_model" for serving, as `Model.export` writes it.

    Raises:
      ConfigurationError: a value is none of those.
    """

    deterministic: bool = False
    deterministic_threads: int = 1
    balance: str = EVEN
    audit: bool = False
    on_nonfinite: str = WARN
    micro_batches: str = AUTO
    micro_batches_together: int = 0
    compression: str = NO_COMPRESSION
    batch_norm: str = MICRO_BATCH
    explain_step: bool = False
    check_step: bool = False
    check_weights_every_n_steps: int = 0
    skip_corrupt: bool = False
    checkpoint_every_n_epochs: int = 1
    checkpoint_every_n_steps: int = 0
    checkpoint_every_minutes: float = 0.0
    keep_checkpoints: int = KEEP_CHECKPOINTS
    checkpoint_dir: str = ""
    gpus_per_worker: int = 0
    tensorboard: bool = False
    export: str = NO_EXPORT

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.type is bool:
                require_bool(field.name, value)
            elif field.type is not str:
                (require_whole_number if field.type is int else require_number)(field.name, value)
                least = 1 if field.name in AT_LEAST_ONE else 0
                require(value >= least, field.name, value, f">= {least}")
        balance, on_nonfinite = self.balance, self.on_nonfinite
        require(balance in BALANCES, "balance", repr(balance), "that is 'even' or 'speed'")
        choices = "that is 'ignore', 'warn', 'skip' or 'stop'"
        require(on_nonfinite in ON_NONFINITE, "on_nonfinite", repr(on_nonfinite), choices)
        how = self.micro_batches
        choices = "that is 'auto', 'loop' or 'together'"
        require(how in MICRO_BATCHES, "micro_batches", repr(how), choices)
        choices = "that is 'none', 'fp16' or 'bf16'"
        compression = self.compression
        require(compression in COMPRESSIONS, "compression", repr(compression), choices)
        choices = "that is 'micro_batch' or 'batch'"
        require(self.batch_norm in BATCH_NORMS, "batch_norm", repr(self.batch_norm), choices)
        choices = "that is 'none' or 'saved_model'"
        require(self.export in EXPORTS, "export", repr(self.export), choices)
        if self.deterministic:
            self._check_deterministic()

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
        """The options that count; the first of the sources that gives one does.

        Names that are no option are left out: a configuration may have others.

        Raises:
          ConfigurationError: a value is none of an option, or two of them exclude each other.
        """
        values: dict[str, Any] = {}
        for source in reversed(sources):
            values |= given(source)
        return cls(**values)

    def replaced(self, values: Asked) -> RunOptions:
        """With other values for some of them.

        Raises:
          ConfigurationError: as the constructor.
        """
        return msgspec.structs.replace(self, **given(values))


def given(source: Asked) -> dict[str, Any]:
    """The options among the values of a source, without those that it does not give."""
    names = RunOptions.__struct_fields__
    return {n: source[n] for n in names if n in source and source[n] is not UNSET}


NO_OPTIONS = RunOptions()
"""What a job does that nobody asked for anything."""


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """What a job asks of all its trainings, whether a script may say otherwise or not.

    As JSON, those of the environment and the like stand by their names, so that people can write
    `{"deterministic": true}`; those of the command line are under `command_line`.

    Attributes:
      command_line: what the command line gives; it counts before what a script asks for.
      otherwise: what a file, the environment or a reference configuration gives, for what the
        script does not say.

    Raises:
      ConfigurationError: a value is none of an option.
    """

    command_line: Asked = dataclasses.field(default_factory=dict)
    otherwise: Asked = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for source in (self.command_line, self.otherwise):
            RunOptions.of(source)

    def __hash__(self) -> int:
        return hash(self.encode())

    def with_script(self, asked: Asked = NOTHING) -> RunOptions:
        """The options that count for a training whose script asks for some itself.

        Raises:
          ConfigurationError: two of them exclude each other, or the script's alone are wrong.
        """
        RunOptions.of(asked)
        return RunOptions.of(self.command_line, asked, self.otherwise)

    def encode(self) -> str:
        """As JSON."""
        content = dict(self.otherwise)
        if self.command_line:
            content[COMMAND_LINE] = dict(self.command_line)
        return msgspec.json.encode(content).decode()

    @classmethod
    def decode(cls, text: str) -> JobOptions:
        """What `encode` made.

        Raises:
          ConfigurationError: the text is not that.
        """
        try:
            content = msgspec.json.decode(text, type=dict[str, Any])
            first = msgspec.convert(content.pop(COMMAND_LINE, {}), dict[str, Any])
            for source in (first, content):
                msgspec.convert(source, RunOptions)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"The options {text!r} were given, expected JSON with values of options, such as "
                f'{{"deterministic": true}}. {error}.'
            ) from error
        return cls(first, content)


NOTHING_ASKED = JobOptions()
"""What a job asks for that was started without any option."""
