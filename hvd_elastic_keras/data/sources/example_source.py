"""The interface of sources for a `Pipeline`: single examples in a fixed order in each epoch."""

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
    """Examples in a fixed order in each epoch."""

    batch_spec: Structure
    """Specs of a batch of any size; None where batches have no tensor."""
    num_examples: int
    from_front: bool
    """Whether a position can be reached only by reading everything before it."""

    @property
    def log(self) -> BatchLog | None:
        """Notes the batches that are read; None if each worker reads its own part only."""

    def order(self, epoch: int) -> ExampleOrder:
        """Returns the order of an epoch: which example stands at which position."""

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        """Yields this worker's part of `first_step` and of each `every`-th step after it.

        A part is the ids of examples (shape [examples of this worker], int64) and a structure of
        tensors of shape [examples of this worker, …]. `partition.step_share(step, share.first,
        share.last)` says which examples these are. The last step is the last one of the epoch.
        """

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """Reads everything before a step, if this is necessary, while `goes_on` returns True."""

    def finish(self, epochs: int) -> None:
        """Leaves the data as after a training of `epochs` epochs."""
