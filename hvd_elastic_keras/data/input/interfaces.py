"""What the training loop asks of its input, in small interfaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.input.epoch_hooks import HasHooks, Moment
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.data.plan.partition import StepShare


@dataclasses.dataclass(frozen=True)
class LocalBatch:
    """One worker's part of one step: tensors of shape [stop - start, …] and their cut.

    Attributes:
      ids: shape [stop - start], int64, what these examples are called in a ledger.
      worker_batches: sizes of those that all workers take together, by rank, where the batch grows
        with them.
      is_whole: whether this is all of a batch that cannot be cut as the first one: every worker has
        it.
    """

    data: Structure
    part: StepShare
    ids: Any = ()
    worker_batches: Sequence[int] = ()
    is_whole: bool = False


class BatchSizes(Protocol):
    """How large batches are, and how they are cut into micro-batches."""

    @property
    def batch_spec(self) -> Structure:
        """Specs of a batch of any size; None where batches have nothing."""

    @property
    def per_row(self) -> Sequence[int] | None:
        """Entries of each tensor per example, as `structure.per_row` says; None: one."""

    @property
    def nothing(self) -> Structure:
        """A batch without examples, with all that belongs to none."""

    @property
    def global_batch_size(self) -> int:
        """Examples of a full global batch."""

    @property
    def micro_batch_size(self) -> int:
        """Examples of a full micro-batch."""

    @property
    def num_examples(self) -> int | None:
        """Examples of a pass; None if only reading to the end would tell."""

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a full global batch: the most workers that have something to do."""

    def cut_into(self, micro_batch_size: int) -> None:
        """Cuts all batches into others than before. For the time before the first step."""


class PassLength(Protocol):
    """How many batches one pass over the data has, which may be known only at its end."""

    @property
    def batches_per_pass(self) -> int | None:
        """Global batches in one pass over the data; None as long as nobody knows."""

    @property
    def ends_unannounced(self) -> bool:
        """Whether only reading to the end tells how long a pass is, and each pass anew."""

    def know_batches_per_pass(self, count: int | None) -> None:
        """Learns from another worker what reading to the end would tell."""

    def expect_batches_per_pass(self, count: int | None) -> None:
        """Learns the same from a checkpoint. Reading raises `DataError` if it is not so now."""

    def confirm_end(self) -> None:
        """All workers have come to the end of a pass where this one has: all are as long."""

    def cut_off(self, epoch: int) -> bool:
        """Whether the pass of an epoch that has ended has more batches than those before it."""


class WorkerBatches(Protocol):
    """Reads the batches of one worker."""

    @property
    def log(self) -> BatchLog | None:
        """Notes what is read; None where each worker reads its own part only."""

    @property
    def from_front(self) -> bool:
        """Whether a step is reached only by reading what lies before it in its pass."""

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        """Reads what lies before a step, where it has to be read, as long as `goes_on` says so.

        `step` is counted as in `batches`. Another thread must not use this input meanwhile. A pass
        of which no step has been taken is not opened: who was the first to come to it may be lost,
        and the others are at the end of the one before, which this worker could not read again.
        """

    def steps(self, epoch: int) -> int | None:
        """Steps of an epoch; None if only reading to the end tells."""

    def batches(self, epoch: int, share: Share, first_step: int) -> Iterator[LocalBatch]:
        """This worker's batches of an epoch from `first_step` on, to its end."""

    def first_batch(self) -> Structure:
        """The first global batch of the training."""


class ExamplePlan(Protocol):
    """Which examples belong to which step, without reading them."""

    def part(self, step: int, share: Share, num_examples: int) -> StepShare:
        """What a worker with this share has of a step of so many examples, all together."""

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        """Ids of the examples of some steps of an epoch.

        Args:
          steps: number and examples of each.

        Returns:
          In the order of micro-batches: shape [examples] each.
        """

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        """Ids of all examples of a whole epoch; None if only its steps tell."""


class EpochEnds(Protocol):
    """Hears of what Keras does with the data at the beginnings and ends of epochs."""

    def come_to(self, epoch: int, moment: Moment) -> None:
        """Lets the data hear of the beginnings and ends of epochs up to a moment, once each.

        Called for the training data, also in evaluations: those of both may be the same.
        """

    def stop(self, epoch: int) -> None:
        """Hears that a callback has ended the training within an epoch."""

    def finish(self, epoch: int) -> None:
        """Leaves the data as after a training that has ended before an epoch.

        The next one may have the same data, which go on where this one has left them.
        """


class PassInput(BatchSizes, PassLength, WorkerBatches, ExamplePlan, HasHooks, Protocol):
    """Reads passes over the data, on which the epochs of a `fit` are laid."""

    def finish_epochs(self, epochs: int, *, stopped: bool) -> None:
        """Leaves the data as after so many epochs of a `fit`, or evaluations.

        Args:
          stopped: whether a callback has ended the last one within its training.
        """


class Input(BatchSizes, PassLength, WorkerBatches, ExamplePlan, EpochEnds, Protocol):
    """What the training loop reads: the steps of an epoch, cut into micro-batches."""
