"""The input of one worker in one round: its batches from a cursor on, with their cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hvd_elastic_keras.data.partition import Partition, Slice
from hvd_elastic_keras.data.source import Source, Structure
from hvd_elastic_keras.training.batch_plan import Share


@dataclasses.dataclass(frozen=True)
class LocalBatch:
    """One worker's part of one step: tensors of shape [stop - start, …] and their cut."""

    data: Structure
    part: Slice


class Pipeline:
    """Cuts a source into the steps of an epoch; the same for every worker."""

    def __init__(self, source: Source, global_batch_size: int, micro_batch_size: int) -> None:
        self.source = source
        self.partition = Partition(source.num_examples, global_batch_size, micro_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the smaller last one included."""
        return self.partition.steps_per_epoch

    def batches(self, epoch: int, share: Share, first_step: int) -> Iterator[LocalBatch]:
        """This worker's batches of an epoch from `first_step` on."""
        batches = self.source.batches(epoch, self.partition, share, first_step)
        for step in range(first_step, self.steps_per_epoch):
            part = self.partition.slice_of(step, share.first, share.last)
            yield LocalBatch(next(batches), part)
