"""Assigns examples to the micro-batches of steps. Pure functions of numbers.

A step takes the positions [step * G, step * G + G) of the epoch's order, where G is the global
batch size. The last step of an epoch takes the remaining positions. Micro-batch j of a step takes
[j * m, (j + 1) * m) of these, where m is the micro-batch size. None of this depends on the workers:
`common/batch_plan.py` decides which worker computes a micro-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hvd_elastic_keras.common.batch_plan import Share


@dataclasses.dataclass(frozen=True)
class Partition:
    """The cut of one epoch of `num_examples` examples into steps and micro-batches."""

    num_examples: int
    global_batch_size: int
    micro_batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch; the last one may be smaller."""
        return -(-self.num_examples // self.global_batch_size)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a full step; the last one may be smaller."""
        return -(-self.global_batch_size // self.micro_batch_size)

    def examples_of_step(self, step: int) -> int:
        """Number of examples in the global batch of `step`."""
        return min(self.global_batch_size, self.num_examples - step * self.global_batch_size)

    def step_share(self, step: int, first: int, last: int) -> StepShare:
        """The examples of micro-batches [first, last) of `step`.

        Raises:
          ValueError: there is no such step.
        """
        if not 0 <= step < self.steps_per_epoch:
            raise ValueError(
                f"step={step} was given, expected a value in [0, {self.steps_per_epoch})."
            )
        size = self.examples_of_step(step)
        last = max(first, min(last, -(-size // self.micro_batch_size)))
        offset = step * self.global_batch_size
        return _step_share(offset, size, self.micro_batch_size, first, last)

    def epoch_share(self, share: Share, first_step: int, every: int = 1) -> EpochShare:
        """Returns what a worker reads: its part of `first_step` and each `every`-th step after."""
        size, micro = self.global_batch_size, self.micro_batch_size
        low, high = (min(bound * micro, size) for bound in (share.first, share.last))
        steps = range(first_step, self.steps_per_epoch, every)
        total = len(steps) * (high - low)
        if steps and self.examples_of_step(steps[-1]) < size:
            last = self.step_share(steps[-1], share.first, share.last)
            total += last.stop - last.start - (high - low)
        return EpochShare(first_step, every, size, low, high - low, total)


@dataclasses.dataclass(frozen=True)
class EpochShare:
    """The examples of one worker in successive steps of an epoch, counted from 0.

    Attributes:
      low: position of the worker's part within each global batch.
      per_step: examples of its part; the last step of an epoch may have fewer.
      total: examples in all steps.
    """

    first_step: int
    every: int
    global_batch_size: int
    low: int
    per_step: int
    total: int

    def positions(self, numbers: Any) -> Any:
        """Returns the positions of examples in the epoch's order. Takes tensors or arrays.

        Args:
          numbers: numbers of this worker's examples, counted from 0.
        """
        step = self.first_step + numbers // self.per_step * self.every
        return step * self.global_batch_size + self.low + numbers % self.per_step


@dataclasses.dataclass(frozen=True)
class StepShare:
    """One worker's part of one step.

    Attributes:
      start, stop: positions in the epoch's order.
      offsets: shape [micro-batches + 1], int32; micro-batch i of the slice is [offsets[i],
        offsets[i + 1]) relative to `start`. No micro-batch is empty. In the last step of an epoch,
        there may be fewer micro-batches, or none.
      first_micro_batch: index of the first micro-batch within the global batch.
      first_example: position of `start` within the global batch.
      num_examples_of_step: examples in the whole global batch, all workers together.
    """

    start: int
    stop: int
    offsets: npt.NDArray[np.int32]
    first_micro_batch: int
    num_examples_of_step: int
    first_example: int = 0


def step_share_of_batch(
    num_examples: int, micro_batch_size: int, share: Share, num_micro_batches: int
) -> StepShare:
    """Returns one worker's part of a batch of any size. Positions count from the batch's front.

    A batch of an unusual size has more or fewer micro-batches. They are divided among the workers
    in the same proportions as in a usual batch. If the usual batch is not cut, no batch is cut.

    Args:
      num_examples: examples in this batch.
      share: this worker's part of the micro-batches of a usual batch.
      num_micro_batches: micro-batches of a usual batch.
    """
    if num_micro_batches == 1:
        micro_batch_size = max(num_examples, 1)
    count = -(-num_examples // micro_batch_size)
    first = share.first * count // num_micro_batches
    last = share.last * count // num_micro_batches
    return _step_share(0, num_examples, micro_batch_size, first, last)


def step_share_of_worker_batch(sizes: Sequence[int], rank: int, micro_batch_size: int) -> StepShare:
    """Returns one worker's part of a step in which each worker takes a batch of its own.

    Positions count from the front of this worker's batch. The micro-batches of a step are numbered
    in the order of ranks. A worker without a batch has no micro-batches.

    Args:
      sizes: examples of the workers' batches in this step, by rank; the last ranks may be missing.
      rank: rank of this worker.
    """
    own = sizes[rank] if rank < len(sizes) else 0
    before = sum(-(-size // micro_batch_size) for size in sizes[:rank])
    part = _step_share(0, own, micro_batch_size, 0, -(-own // micro_batch_size))
    return dataclasses.replace(
        part,
        first_micro_batch=before,
        first_example=sum(sizes[:rank]),
        num_examples_of_step=sum(sizes),
    )


def _step_share(
    offset: int, num_examples: int, micro_batch_size: int, first: int, last: int
) -> StepShare:
    """Returns micro-batches [first, last) of a batch that begins at position `offset`."""
    bounds = np.minimum(np.arange(first, last + 1) * micro_batch_size, num_examples)
    return StepShare(
        start=offset + int(bounds[0]),
        stop=offset + int(bounds[-1]),
        offsets=(bounds - bounds[0]).astype(np.int32),
        first_micro_batch=first,
        num_examples_of_step=num_examples,
        first_example=int(bounds[0]),
    )
