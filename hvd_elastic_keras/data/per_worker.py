"""The input of a batch that grows with the workers: each of them takes a portion of its own.

An epoch is a sequence of portions of `batch_size_per_worker` examples (the last one may be
smaller), or of the user's batches. A step takes the next ones, one for each worker in the order of
ranks; the last step of an epoch takes what is left. How many a step takes is all that depends on
the workers, so that any step can be the first one of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd_elastic_keras.batch_plan import Share
from hvd_elastic_keras.data import structure
from hvd_elastic_keras.data.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.partition import slice_of_portion
from hvd_elastic_keras.data.passes import Passes
from hvd_elastic_keras.data.pipeline import FitInput, LocalBatch, Pipeline
from hvd_elastic_keras.data.structure import Structure
from hvd_elastic_keras.ledger import Ids


class PerWorkerInput(FitInput):
    """An input whose portions are the global batches of `inner`.

    Args:
      inner: cuts an epoch as for one worker that is alone.
      index_of: number of an epoch, counted from the first one that reads this input.
    """

    def __init__(
        self, inner: Pipeline | BatchPipeline, index_of: Callable[[int], int] = lambda epoch: epoch
    ) -> None:
        super().__init__(inner, Passes(), index_of)
        self._portions = inner
        self._nothing = structure.cut(inner.first_batch(), 0, 0)

    def portions_left(self, epoch: int, first: int) -> int | None:
        """Portions of an epoch from number `first` on; None if only reading to the end tells."""
        count = self.steps(epoch)
        return None if count is None else max(0, count - first)

    def of_worker(self, epoch: int, first: int, rank: int, size: int) -> Iterator[LocalBatch]:
        """A worker's part of the steps of an epoch from portion `first` on, to its end.

        Args:
          epoch: as the training counts.
          first: number of the portion that rank 0 takes first.
          rank: of this worker.
          size: number of workers, and so of portions that a step takes.
        """
        index, inner = self._index_of(epoch), self._portions
        if isinstance(inner, Pipeline):
            yield from self._of_examples(inner, index, first, rank, size)
        else:
            yield from self._of_batches(inner, index, first, rank, size)

    def ids_of_portions(self, epoch: int, first: int, sizes: Sequence[int]) -> list[Ids]:
        """Ids of the examples of successive portions, from number `first` on."""
        index = self._index_of(epoch)
        return self._portions.ids(index, list(enumerate(sizes, first)))

    def _of_examples(
        self, inner: Pipeline, epoch: int, first: int, rank: int, size: int
    ) -> Iterator[LocalBatch]:
        partition = inner.partition
        whole = Share(0, partition.num_micro_batches)
        mine = inner.source.batches(epoch, partition, whole, first + rank, every=size)
        for start in range(first, partition.steps_per_epoch, size):
            numbers = range(start, min(start + size, partition.steps_per_epoch))
            sizes = [partition.examples_of_step(number) for number in numbers]
            ids, data = next(mine) if rank < len(sizes) else ((), self._nothing)
            yield self._local_batch(data, ids, sizes, rank)

    def _of_batches(
        self, inner: BatchPipeline, number: int, first: int, rank: int, size: int
    ) -> Iterator[LocalBatch]:
        for batches in inner.groups(number, first, size):
            sizes = [structure.num_examples(batch) for batch in batches]
            data = batches[rank] if rank < len(batches) else self._nothing
            own = [(first + rank, sizes[rank] if rank < len(batches) else 0)]
            (ids,) = inner.ids(number, own)
            yield self._local_batch(data, ids, sizes, rank)
            first += len(batches)

    def _local_batch(self, data: Structure, ids: Any, sizes: list[int], rank: int) -> LocalBatch:
        part = slice_of_portion(sizes, rank, self.micro_batch_size)
        return LocalBatch(data, part, ids, tuple(sizes))
