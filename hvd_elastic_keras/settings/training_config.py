"""The settings of a training, validated on construction."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from hvd_elastic_keras.common.errors import (
    ConfigurationError,
    require,
    require_bool,
    require_whole_number,
)
from hvd_elastic_keras.settings.option import Option, definitions
from hvd_elastic_keras.settings.options import SPEED, RunOptions, given

DEFAULT_GLOBAL_BATCH_SIZE = 128
DEFAULT_MICRO_BATCHES = 8
"""Most micro-batches into which a batch is cut by default.

This is a constant and never the number of workers, because batch-norm statistics depend on the cut.
"""
LEAST_FOR_BATCH_NORM = 16
"""Least examples of a micro-batch with batch normalisation.

Statistics over fewer examples are so noisy that a model may train worse than on one machine.
"""


GLOBAL = "global"
PER_WORKER = "per_worker"
BATCHES = (GLOBAL, PER_WORKER)
"""Kinds of batches: the same one for any number of workers, or a batch of each worker's own."""
LINEAR, SQRT, NO_SCALING = "linear", "sqrt", "none"
LR_SCALINGS = (LINEAR, SQRT, NO_SCALING)
"""Ways in which the learning rate follows a batch that grows with the workers."""
DEFAULT_LR_WARM_UP_STEPS = 100


def check_growth(batch: object, lr_scaling: object, lr_warm_up_steps: Any) -> None:
    """Raises `ConfigurationError` if one of these values makes no sense, or has no effect."""
    for name, value in (("batch", batch), ("lr_scaling", lr_scaling)):
        definitions(TrainingConfig)[name][1].check(name, value)
    require_whole_number("lr_warm_up_steps", lr_warm_up_steps, may_be_none=False)
    require(lr_warm_up_steps >= 0, "lr_warm_up_steps", lr_warm_up_steps, ">= 0")
    changed = [
        f"{name}={value!r}"
        for name, value, default in (
            ("lr_scaling", lr_scaling, LINEAR),
            ("lr_warm_up_steps", lr_warm_up_steps, DEFAULT_LR_WARM_UP_STEPS),
        )
        if value != default
    ]
    if batch == GLOBAL and changed:
        raise ConfigurationError(
            f"{' and '.join(changed)} was given with batch='global', where the learning rate stays "
            "what it is. Use batch='per_worker', or leave it out."
        )


def check_seed(seed: Any) -> None:
    """Raises `ConfigurationError` if the value cannot be a seed."""
    require_whole_number("seed", seed, may_be_none=False)
    require(0 <= seed < 2**31, "seed", seed, "between 0 and 2147483647")


def check_batch_may_grow(options: RunOptions) -> None:
    """Raises `ConfigurationError` if these options exclude `batch="per_worker"`."""
    if options.deterministic:
        raise ConfigurationError(
            "deterministic=True was given with batch='per_worker', expected batch='global': the "
            "batch itself depends on the number of workers otherwise, and so do the weights. Leave "
            "one of the two out."
        )
    if options.balance == SPEED:
        raise ConfigurationError(
            "balance='speed' was given with batch='per_worker', expected balance='even': each "
            "worker takes as many examples as every other. Leave one of the two out."
        )


@dataclasses.dataclass(frozen=True)
class BatchCut:
    """How a batch of any size is cut into micro-batches, however a model is trained.

    Attributes:
      micro_batch_size: examples of a micro-batch. None chooses as many equal micro-batches as
        possible, up to 8; the last one may be smaller. With batch normalisation, which sees one
        micro-batch at a time, each has at least 16 examples, unless the batch itself has fewer.
      batch: with "per_worker", workers do not share a batch, so None chooses the whole batch.

    Raises:
      ConfigurationError: a size below 1.
    """

    micro_batch_size: int | None = None
    batch: str = GLOBAL

    def __post_init__(self) -> None:
        size = self.micro_batch_size
        require_whole_number("micro_batch_size", size, may_be_none=True)
        require(size is None or size >= 1, "micro_batch_size", size, ">= 1")

    def of(self, batch_size: int, has_batch_norm: bool) -> int:
        """Returns the examples per micro-batch. The last micro-batch may have fewer.

        >>> [BatchCut().of(size, has_batch_norm=False) for size in (128, 100, 7)]
        [16, 13, 1]
        >>> [BatchCut().of(size, has_batch_norm=True) for size in (256, 100, 7)]
        [32, 20, 7]
        """
        if self.micro_batch_size is not None:
            return min(self.micro_batch_size, batch_size)
        if self.batch == PER_WORKER:
            return batch_size
        least = LEAST_FOR_BATCH_NORM if has_batch_norm else 1
        sizes = (-(-batch_size // count) for count in range(DEFAULT_MICRO_BATCHES, 0, -1))
        # The last micro-batch has the remaining examples.
        return next((s for s in sizes if (batch_size % s or s) >= least), batch_size)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training. Its loss curve depends on them alone, not on the workers.

    The fields that are `UNSET` belong to `RunOptions`. For these, the command line of `run` counts
    before a value given here. Without a value here, a file of flags, the environment or the default
    counts. With `deterministic` and without `run`, call
    `tf.config.threading.set_intra_op_parallelism_threads(1)` before making the model.

    Attributes:
      global_batch_size, micro_batch_size, epochs, steps, seed, drop_remainder, batch,
        batch_size_per_worker, lr_scaling, lr_warm_up_steps: see the flags of the same names. With a
        `micro_batch_size` of 0, `BatchCut` chooses when the model is known. A
        `batch_size_per_worker` of 0 means `global_batch_size`. None for `epochs` or `steps` means
        that the other value bounds the training.
      shuffle: whether the examples of arrays and of sources with random access are reordered in
        every epoch.

    Raises:
      ConfigurationError: a value is out of range; the message names allowed values.

    Example:

        >>> config = TrainingConfig(global_batch_size=128, epochs=10)
        >>> config.cut.of(config.global_batch_size, has_batch_norm=True)  # examples of one
        16
    """

    global_batch_size: Annotated[
        int,
        Option(
            "Examples per optimizer step, whatever the number of workers; with --batch=per_worker, "
            "of the batch that the learning rate belongs to.",
        ),
    ] = DEFAULT_GLOBAL_BATCH_SIZE
    micro_batch_size: Annotated[
        int,
        Option(
            "Examples per micro-batch. Workers compute whole micro-batches. It must divide the "
            "global batch, or with --batch=per_worker the batch of a worker.",
            least=1,
            default="1/8 of the global batch, but at least 16 examples if the model has batch "
            "normalisation; with --batch=per_worker, the whole batch of a worker",
            more="See [below](#the-cut-of-a-batch).",
        ),
    ] = 0
    epochs: Annotated[int | None, Option("Passes over the data.")] = 1
    steps: Annotated[
        int | None,
        Option(
            "Optimizer steps in all. With --epochs, whichever comes first ends the training.",
            default="none",
        ),
    ] = None
    seed: Annotated[
        int,
        Option(
            "Initial weights, order of examples and dropout follow from it. In a script: all "
            "random numbers that the script does not seed itself; without the flag, the launcher "
            "draws it.",
            more="See [fit.md](fit.md#the-seed-of-a-job).",
        ),
    ] = 0
    shuffle: bool = True
    drop_remainder: Annotated[
        bool,
        Option(
            "Leave out the last step of an epoch if its batch would be smaller; with "
            "--batch=per_worker, the last batch of a worker, so that fewer workers may take part "
            "in the last step. Other examples are left out in every epoch.",
        ),
    ] = False
    checkpoint_every_n_epochs: int | UnsetType = UNSET
    checkpoint_every_n_steps: int | UnsetType = UNSET
    checkpoint_every_minutes: float | UnsetType = UNSET
    keep_checkpoints: int | UnsetType = UNSET
    keep_best: str | UnsetType = UNSET
    deterministic: bool | UnsetType = UNSET
    balance: str | UnsetType = UNSET
    compression: str | UnsetType = UNSET
    batch_norm: str | UnsetType = UNSET
    audit: bool | UnsetType = UNSET
    batch: Annotated[
        str,
        Option(
            "global: a step has --global_batch_size examples, which the workers share. per_worker: "
            "each worker takes --batch_size_per_worker, so that the batch grows with the workers "
            "and the result depends on their number.",
            choices=BATCHES,
        ),
    ] = GLOBAL
    batch_size_per_worker: Annotated[
        int,
        Option(
            "With --batch=per_worker: examples that each worker takes per step; a multiple of "
            "--micro_batch_size.",
            least=1,
            default="the global batch divided by --num_workers",
        ),
    ] = 0
    lr_scaling: Annotated[
        str,
        Option(
            "With --batch=per_worker: the model's learning rate belongs to a batch of "
            "--global_batch_size. For k times that batch it is multiplied by k (linear), by the "
            "square root of k (sqrt), or not (none). The last step of an epoch has the same rate, "
            "though its batch may be smaller.",
            choices=LR_SCALINGS,
            more="Weight decay that Keras multiplies by the learning rate follows it.",
        ),
    ] = LINEAR
    lr_warm_up_steps: Annotated[
        int,
        Option(
            "With --batch=per_worker: steps over which the learning rate gets to a larger value "
            "when the batch has grown. A smaller value is taken at once.",
        ),
    ] = DEFAULT_LR_WARM_UP_STEPS

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size", "epochs", "steps"):
            require_whole_number(name, getattr(self, name), name in ("epochs", "steps"))
        require(self.global_batch_size >= 1, "global_batch_size", self.global_batch_size, ">= 1")
        expected = ">= 1, or 0 for at most 8 micro-batches"
        require(self.micro_batch_size >= 0, "micro_batch_size", self.micro_batch_size, expected)
        self._check_batch()
        if self.micro_batch_size:
            self._check_cut()
        require(self.epochs is None or self.epochs >= 1, "epochs", self.epochs, ">= 1")
        require(self.steps is None or self.steps >= 1, "steps", self.steps, ">= 1")
        require_bool("drop_remainder", self.drop_remainder)
        require_bool("shuffle", self.shuffle)
        check_seed(self.seed)
        options = RunOptions.of(self.asked)
        if self.batch_grows:
            check_batch_may_grow(options)
        if self.epochs is None and self.steps is None:
            raise ConfigurationError(
                "Neither epochs nor steps is set, so training would never end. Set one of them."
            )

    def _check_batch(self) -> None:
        check_growth(self.batch, self.lr_scaling, self.lr_warm_up_steps)
        size = self.batch_size_per_worker
        require_whole_number("batch_size_per_worker", size, may_be_none=False)
        expected = ">= 1, or 0 for global_batch_size"
        require(size >= 0, "batch_size_per_worker", size, expected)
        if size and not self.batch_grows:
            raise ConfigurationError(
                f"batch_size_per_worker={size} was given with batch='global', which workers share "
                "whatever their number. Use batch='per_worker', or leave it out."
            )
        if self.batch_grows and not size:
            object.__setattr__(self, "batch_size_per_worker", self.global_batch_size)

    @property
    def _cut_batch(self) -> tuple[str, int]:
        """Name and size of the batch that is cut into micro-batches."""
        name = "batch_size_per_worker" if self.batch_grows else "global_batch_size"
        return name, getattr(self, name)

    def _check_cut(self) -> None:
        name, size = self._cut_batch
        micro = self.micro_batch_size
        if size % micro:
            below = size // micro * micro
            choices = f"{below} or {below + micro}" if below else f"{micro}"
            raise ConfigurationError(
                f"{name}={size} is not a multiple of micro_batch_size={micro}. "
                f"Use a {name} of {choices}, or a micro_batch_size that divides {size}."
            )

    @property
    def batch_grows(self) -> bool:
        """Whether the batch grows with the workers."""
        return self.batch == PER_WORKER

    @property
    def asked(self) -> dict[str, Any]:
        """The options that this configuration gives; see `RunOptions`."""
        return given(vars(self))

    @property
    def cut(self) -> BatchCut:
        """How a batch is cut into micro-batches."""
        return BatchCut(self.micro_batch_size or None, self.batch)

    @property
    def cut_batch_size(self) -> int:
        """Examples of the batch that is cut: a global batch, or a worker's if the batch grows."""
        return self._cut_batch[1]
