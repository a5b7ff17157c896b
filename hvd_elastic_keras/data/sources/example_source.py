"""What a `Pipeline` reads: single examples with a fixed order in each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.order import ExampleOrder
from hvd_elastic_keras.data.plan.partition import Partition


class ExampleSource(Protocol):
    """Examples with a fixed order in each epoch."""

    batch_spec: Structure
    """Specs of a batch of any size; None where batches have nothing."""
    num_examples: int
    from_front: bool
    """Whether a position is reached only by reading what lies before it."""

    @property
    def log(self) -> BatchLog | None:
        """Notes what is read; None where each worker reads its own part only."""

    def order(self, epoch: int) -> ExampleOrder:
        """Which example stands at which position of an epoch."""

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        """This worker's part of the steps of an epoch: of `first_step` and each `every`-th after.

        Yields the ids of examples (shape [examples of this worker], int64) and a structure of
        tensors of shape [examples of this worker, …]; which examples is
        `partition.step_share(step, share.first, share.last)`.
        """

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """Reads what lies before a step, where it has to be read, as long as `goes_on` says so."""

    def finish(self, epochs: int) -> None:
        """Leaves the data as after a training of so many epochs."""
