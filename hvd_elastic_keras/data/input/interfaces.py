"""Small interfaces of the training loop's input.

`EpochHooks` calls the hooks of the data at the beginnings and ends of epochs, as in plain Keras. A
`keras.utils.PyDataset` may shuffle itself in its hooks, and a training and its validation may share
one. Therefore each worker calls all hooks once and in Keras's order, including the hooks of epochs
that it has missed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.structure import Layout, Structure
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.data.plan.partition import StepShare


@dataclasses.dataclass(frozen=True)
class LocalBatch:
    """One worker's part of one step: tensors of shape [stop - start, …] and their cut.

    Attributes:
      ids: shape [stop - start], int64; the ids of these examples in a ledger.
      worker_batches: sizes of the batches that all workers take in this step, by rank, if the batch
        grows with the workers.
      is_whole: whether this is a whole batch on every worker, because it cannot be cut like the
        first batch.
    """

    data: Structure
    part: StepShare
    ids: Any = ()
    worker_batches: Sequence[int] = ()
    is_whole: bool = False


class BatchSizes(Protocol):
    """The sizes of batches and of their micro-batches."""

    @property
    def batch_spec(self) -> Structure:
        """Specs of a batch of any size; None where batches have no tensor."""

    @property
    def per_row(self) -> Sequence[int] | None:
        """Entries of each tensor per example, as in `structure.per_row`; None: one."""

    @property
    def nothing(self) -> Structure:
        """A batch without examples. Tensors that belong to no example stay in it."""

    @property
    def global_batch_size(self) -> int:
        """Examples of a full global batch."""

    @property
    def has_one_size(self) -> bool:
        """Whether plain Keras would trace its step for batches of this size only."""

    @property
    def micro_batch_size(self) -> int:
        """Examples of a full micro-batch."""

    @property
    def num_examples(self) -> int | None:
        """Examples of a pass; None if the number is only known after reading to the end."""

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a full global batch. More workers than this would have nothing to do."""

    def cut_into(self, micro_batch_size: int) -> None:
        """Changes the size of micro-batches. Call it before the first step only."""


class PassLength(Protocol):
    """The number of batches in one pass over the data. It may be known only at its end."""

    @property
    def batches_per_pass(self) -> int | None:
        """Global batches in one pass over the data; None while this is unknown."""

    @property
    def ends_unannounced(self) -> bool:
        """Whether the length of each pass is only known after reading it to its end."""

    def know_batches_per_pass(self, count: int | None) -> None:
        """Takes the number of batches per pass from another worker."""

    def expect_batches_per_pass(self, count: int | None) -> None:
        """Takes the number from a checkpoint. Reading raises `DataError` if it is different now."""

    def confirm_end(self) -> None:
        """Notes that all workers have found the end of a pass at the same position as this one."""

    def cut_off(self, epoch: int) -> bool:
        """Returns whether the pass of a finished epoch has more batches than earlier passes."""


class WorkerBatches(Protocol):
    """Reads the batches of one worker."""

    @property
    def log(self) -> BatchLog | None:
        """Notes the batches that are read; None if each worker reads its own part only."""

    @property
    def from_front(self) -> bool:
        """Whether a step can be reached only by reading everything before it in its pass."""

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        """Reads everything before a step, if this is necessary, while `goes_on` returns True.

        `step` is counted as in `batches`. No other thread may use this input meanwhile. A pass
        without a finished step is not opened. The first worker that has reached this pass may get
        lost while the others are at the end of the previous pass. This worker could then not read
        the previous pass again.
        """

    def steps(self, epoch: int) -> int | None:
        """Returns the steps of an epoch; None if they are only known after reading to the end."""

    def batches(self, epoch: int, share: Share, first_step: int) -> Iterator[LocalBatch]:
        """Yields this worker's batches of an epoch, from `first_step` to its end."""

    def first_batch(self) -> Structure:
        """Returns the first global batch of the training."""


class ExamplePlan(Protocol):
    """Says which examples belong to which step, without reading them."""

    def part(self, step: int, share: Share, num_examples: int) -> StepShare:
        """Returns the part of a worker with this share in a step.

        Args:
          num_examples: examples of the step, all workers together.
        """

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        """Returns the ids of the examples of some steps of an epoch.

        Args:
          steps: number of the step and number of its examples, for each step.

        Returns:
          An array of shape [examples] for each step, in the order of micro-batches.
        """

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        """Returns the ids of all examples of an epoch; None if known only for its steps."""


class EpochEnds(Protocol):
    """Calls the hooks of the data where Keras would, at the beginnings and ends of epochs."""

    def come_to(self, epoch: int, moment: Moment) -> None:
        """Calls the hooks for the beginnings and ends of epochs up to a moment, once each.

        It is called on the training data, also in evaluations: both may have the same data.
        """

    def stop(self, epoch: int) -> None:
        """Notes that a callback has ended the training within an epoch."""

    def finish(self, epoch: int) -> None:
        """Leaves the data as plain Keras would after a training that ended before an epoch.

        The next training may use the same data, which continue from there.
        """


class HasHooks(Protocol):
    """Data with hooks for the beginnings and ends of epochs, like a data adapter of Keras."""

    def on_epoch_begin(self) -> None:
        """Called when Keras begins to read an epoch."""

    def on_epoch_end(self) -> None:
        """Called when Keras has read an epoch to its end, or resets data for an evaluation."""

    def on_stop(self) -> None:
        """Called when a callback has stopped an epoch early: Keras then never reaches its end."""


class Moment(enum.IntEnum):
    """The moments at which hooks are called, in their order within an epoch."""

    TRAINING_BEGINS = 0
    TRAINING_ENDS = 1
    EVALUATION_COMES = 2
    """Keras resets the data, and calls `on_test_begin` afterwards."""
    EVALUATION_BEGINS = 3
    EVALUATION_ENDS = 4


class PassInput(BatchSizes, PassLength, WorkerBatches, ExamplePlan, HasHooks, Protocol):
    """Reads passes over the data, to which the epochs of a `fit` are mapped."""

    def batches(
        self, epoch: int, share: Share, first_step: int, stop: int | None = None
    ) -> Iterator[LocalBatch]:
        """Yields this worker's batches of a pass, from `first_step` to `stop` or to its end.

        Batches from `stop` on are not read, not even ahead.
        """

    def finish_epochs(self, epochs: int, *, stopped: bool) -> None:
        """Leaves the data as after a number of epochs of a `fit`, or evaluations.

        Args:
          epochs: number of epochs, or of evaluations.
          stopped: whether a callback has ended the last epoch during its training.
        """


class Input(BatchSizes, PassLength, WorkerBatches, ExamplePlan, EpochEnds, Protocol):
    """The input of the training loop: the steps of an epoch, cut into micro-batches."""


def full_spec(source: Input) -> Structure | None:
    """Returns the specs of a batch if all batches are of the same size; else None."""
    if not source.has_one_size:
        return None
    layout = Layout(source.batch_spec, source.per_row)
    return layout.pack(layout.of_size(source.global_batch_size))


class EpochHooks:
    """Calls the hooks of the data of one `fit`.

    Args:
      train, evaluate: the data.
      evaluates_after: whether an epoch ends with an evaluation.
      initial_epoch: the first epoch.
    """

    def __init__(
        self,
        train: HasHooks,
        evaluate: HasHooks | None,
        evaluates_after: Callable[[int], bool],
        initial_epoch: int,
    ) -> None:
        self._train = train
        self._evaluate = evaluate
        self._evaluates_after = evaluates_after
        self._next = (initial_epoch, Moment.TRAINING_BEGINS)
        self.stopped = False
        """Whether a callback has ended the newest epoch during its training."""

    def come_to(self, epoch: int, moment: Moment) -> None:
        """Calls all hooks that are due up to a moment, including the hook of the moment itself."""
        while self._next <= (epoch, moment):
            self._call(*self._next)
            self._pass()

    def stop(self, epoch: int) -> None:
        """Notes that a callback has ended the training within an epoch: its end is not called."""
        self.come_to(epoch, Moment.TRAINING_BEGINS)
        if self._next == (epoch, Moment.TRAINING_ENDS):
            self._train.on_stop()
            self._pass()
            self.stopped = True

    def _pass(self) -> None:
        epoch, moment = self._next
        last = moment is Moment.EVALUATION_ENDS
        self._next = (epoch + 1, Moment(0)) if last else (epoch, Moment(moment + 1))

    def _call(self, epoch: int, moment: Moment) -> None:
        data: HasHooks | None = self._train
        if moment >= Moment.EVALUATION_COMES:
            data = self._evaluate if self._evaluates_after(epoch) else None
        if data is None:
            return
        if moment in (Moment.TRAINING_BEGINS, Moment.EVALUATION_BEGINS):
            data.on_epoch_begin()
        else:
            data.on_epoch_end()
