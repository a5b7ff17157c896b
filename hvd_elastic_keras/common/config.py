"""Configuration values, validated on construction and shared by all parts."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec import UNSET, UnsetType

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.options import SPEED, RunOptions, given
from hvd_elastic_keras.common.requirements import require
from hvd_elastic_keras.common.requirements import require_bool as _require_bool
from hvd_elastic_keras.common.requirements import require_whole_number as _require_whole_number

DEFAULT_GLOBAL_BATCH_SIZE = 128
DEFAULT_MICRO_BATCHES = 8
"""Micro-batches that a batch is cut into at most if the user does not say. A constant, never the
number of workers: batch-norm statistics depend on the cut."""
LEAST_FOR_BATCH_NORM = 16
"""Statistics over fewer examples are so noisy that a model may train worse than on one machine."""


GLOBAL = "global"
PER_WORKER = "per_worker"
BATCHES = (GLOBAL, PER_WORKER)
"""Whether a step has the same batch whatever the number of workers, or each takes its own."""
LINEAR, SQRT, NO_SCALING = "linear", "sqrt", "none"
LR_SCALINGS = (LINEAR, SQRT, NO_SCALING)
"""How the learning rate follows a batch that grows with the workers."""
DEFAULT_LR_WARM_UP_STEPS = 100


def check_growth(batch: object, lr_scaling: object, lr_warm_up_steps: Any) -> None:
    """Raises `ConfigurationError` if one of these makes no sense, or has no effect."""
    require(batch in BATCHES, "batch", repr(batch), "that is 'global' or 'per_worker'")
    expected = "that is 'linear', 'sqrt' or 'none'"
    require(lr_scaling in LR_SCALINGS, "lr_scaling", repr(lr_scaling), expected)
    _require_whole_number("lr_warm_up_steps", lr_warm_up_steps, may_be_none=False)
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
    """Raises `ConfigurationError` if there is no such seed."""
    _require_whole_number("seed", seed, may_be_none=False)
    require(0 <= seed < 2**31, "seed", seed, "between 0 and 2147483647")


def check_batch_may_grow(options: RunOptions) -> None:
    """Raises `ConfigurationError` if these cannot go with `batch="per_worker"`."""
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
      micro_batch_size: examples of a micro-batch; None chooses: as many equal
        micro-batches as there can be up to 8, of which the last one may be smaller. With batch
        normalisation, which sees one micro-batch at a time, none has fewer than 16 examples, unless
        the batch itself has fewer.
      batch: with "per_worker", where nobody shares a batch, None chooses the whole one.

    Raises:
      ConfigurationError: a size below 1.
    """

    micro_batch_size: int | None = None
    batch: str = GLOBAL

    def __post_init__(self) -> None:
        size = self.micro_batch_size
        _require_whole_number("micro_batch_size", size, may_be_none=True)
        require(size is None or size >= 1, "micro_batch_size", size, ">= 1")

    def of(self, batch_size: int, has_batch_norm: bool) -> int:
        """Examples per micro-batch: all have that many but the last, which may have fewer.

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
        # The last micro-batch has what is left.
        return next((s for s in sizes if (batch_size % s or s) >= least), batch_size)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """What is trained, whoever computes it: the loss curve depends on these values alone.

    Attributes:
      global_batch_size: examples per optimizer step; where the batch grows with the workers, those
        of the batch that the model's learning rate belongs to.
      micro_batch_size: examples of a micro-batch; divides `global_batch_size`.
        0 lets `BatchCut` choose when the model is known.
      epochs: passes over the data; None if only `steps` bounds the training.
      steps: optimizer steps in all; None if only `epochs` bounds the training. With both,
        training ends at whichever comes first.
      seed: initial weights, order of the examples and dropout follow from it.
      shuffle: whether the examples of arrays and of sources with random access are reordered in
        every epoch.
      drop_remainder: whether the last batch of an epoch is left out if it would be smaller; with
        "per_worker", that of a single worker, so that fewer workers may take part in the last step.
        The examples that are left out are others in every epoch.
      checkpoint_every_n_epochs, checkpoint_every_n_steps, checkpoint_every_minutes,
        keep_checkpoints: see `RunOptions`. Of these and the next five, what the command line of
        `run` gives counts before what is given here. `UNSET` is not given: then a file of flags,
        the environment or the default counts.
      deterministic: whether the weights after every step are bit-identical whatever the number of
        workers, kills and joins. Slower: each operation has one thread, or as many as
        `run --deterministic_threads` says. Alone, call
        `tf.config.threading.set_intra_op_parallelism_threads(1)` before making the model.
      balance: "even" shares of each batch, or shares that follow the workers' "speed".
      compression: gradients travel between workers as they are ("none"), or rounded to "fp16" or
        "bf16", which takes half of the time on a slow network.
      batch_norm: normalises over each "micro_batch" by itself, or over the whole "batch", as plain
        Keras does, with more rounds of collectives in a step.
      audit: whether each epoch leaves a ledger in `job_dir` that says which examples were used in
        which step, by whom, and whether each was used exactly once. See `audit/ledger_file.py`.
      batch: "global", or "per_worker": every worker takes `batch_size_per_worker` examples per
        step, so that the batch grows with the workers, and the loss curve depends on them.
      batch_size_per_worker: only with "per_worker", where `micro_batch_size` divides it in place of
        `global_batch_size`. 0 means `global_batch_size`.
      lr_scaling: only with "per_worker": the learning rate of the model belongs to a batch of
        `global_batch_size`; it is multiplied by the ratio of the batch to that ("linear"), by the
        square root of the ratio ("sqrt"), or stays ("none"); in the last step of an epoch as in the
        others, though fewer examples may be left for it. Weight decay that Keras multiplies by
        the learning rate follows it.
      lr_warm_up_steps: steps over which the learning rate gets to a larger value when the batch has
        grown. A smaller value is taken at once.

    Raises:
      ConfigurationError: a value is out of range, with the nearest values that are not.

    Example:

        >>> config = TrainingConfig(global_batch_size=128, epochs=10)
        >>> config.cut.of(config.global_batch_size, has_batch_norm=True)  # examples of one
        16
    """

    global_batch_size: int = DEFAULT_GLOBAL_BATCH_SIZE
    micro_batch_size: int = 0
    epochs: int | None = 1
    steps: int | None = None
    seed: int = 0
    shuffle: bool = True
    drop_remainder: bool = False
    checkpoint_every_n_epochs: int | UnsetType = UNSET
    checkpoint_every_n_steps: int | UnsetType = UNSET
    checkpoint_every_minutes: float | UnsetType = UNSET
    keep_checkpoints: int | UnsetType = UNSET
    deterministic: bool | UnsetType = UNSET
    balance: str | UnsetType = UNSET
    compression: str | UnsetType = UNSET
    batch_norm: str | UnsetType = UNSET
    audit: bool | UnsetType = UNSET
    batch: str = GLOBAL
    batch_size_per_worker: int = 0
    lr_scaling: str = LINEAR
    lr_warm_up_steps: int = DEFAULT_LR_WARM_UP_STEPS

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size", "epochs", "steps"):
            _require_whole_number(name, getattr(self, name), name in ("epochs", "steps"))
        require(self.global_batch_size >= 1, "global_batch_size", self.global_batch_size, ">= 1")
        expected = ">= 1, or 0 for at most 8 micro-batches"
        require(self.micro_batch_size >= 0, "micro_batch_size", self.micro_batch_size, expected)
        self._check_batch()
        if self.micro_batch_size:
            self._check_cut()
        require(self.epochs is None or self.epochs >= 1, "epochs", self.epochs, ">= 1")
        require(self.steps is None or self.steps >= 1, "steps", self.steps, ">= 1")
        _require_bool("drop_remainder", self.drop_remainder)
        _require_bool("shuffle", self.shuffle)
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
        _require_whole_number("batch_size_per_worker", size, may_be_none=False)
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
        """Name and size of what is cut into micro-batches."""
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
        """The options among its values that it gives; see `RunOptions`."""
        return given(vars(self))

    @property
    def cut(self) -> BatchCut:
        """How a batch is cut into micro-batches."""
        return BatchCut(self.micro_batch_size or None, self.batch)

    @property
    def cut_batch_size(self) -> int:
        """Examples of what is cut: a global batch, or one of a worker if the batch grows."""
        return self._cut_batch[1]


@dataclasses.dataclass(frozen=True)
class JobConfig:
    """How many workers there are and how patient the master is (times in seconds).

    Attributes:
      num_workers: workers to start with, and to keep up by restarts.
      min_workers: below this number the job waits.
      max_workers: workers that there may be, spares included: those beyond the number of
        micro-batches.
      max_restarts: replacements for failed workers within `restart_window_s`.
      restart_window_s: older ones are forgotten if training has gone on since.
      heartbeat_timeout_s: a worker that is silent for so long is evicted, unless its process runs.
      stall_timeout_s: a worker that holds others up for so long, in its own code, is evicted; so is
        one that is silent for so long though its process runs.
      start_up_timeout_s: a worker that has not come to its training for so long is evicted.
      enter_timeout_s: how long the first worker at the entrance of a round waits for the others.
      join_window_s: how long a warm worker waits for others that start to join together with it.
      start_timeout_s: how long a first warm worker waits for others that are still starting.
      wait_timeout_s: how long a job below `min_workers` waits before it fails.
      master_timeout_s: how long workers train on without their master before they leave.
      stop_grace_s: how long workers may take to leave when the job stops.
      awaits_joiners: whether a job without workers waits for some that come by themselves.
      own_machines: whether the launcher gives each worker a machine of its own, such as a pod, that
        others may take back at any time; another worker takes its place then.
    """

    num_workers: int = 2
    min_workers: int = 1
    max_workers: int = 16
    max_restarts: int = 10
    restart_window_s: float = 3600.0
    heartbeat_timeout_s: float = 15.0
    stall_timeout_s: float = 1800.0
    start_up_timeout_s: float = 7200.0
    enter_timeout_s: float = 60.0
    start_timeout_s: float = 120.0
    join_window_s: float = 5.0
    wait_timeout_s: float = 1800.0
    master_timeout_s: float = 600.0
    stop_grace_s: float = 30.0
    awaits_joiners: bool = False
    own_machines: bool = False

    def __post_init__(self) -> None:
        least = {"num_workers": 0 if self.awaits_joiners else 1, "min_workers": 1}
        for name, value in vars(self).items():
            require(value >= least.get(name, 0), name, value, f">= {least.get(name, 0)}")
        at_start = self.min_workers if self.awaits_joiners else self.num_workers
        if not self.min_workers <= max(at_start, self.num_workers) <= self.max_workers:
            raise ConfigurationError(
                f"min_workers={self.min_workers}, num_workers={self.num_workers} and "
                f"max_workers={self.max_workers} are not in this order. "
                "Use min_workers <= num_workers <= max_workers."
            )
