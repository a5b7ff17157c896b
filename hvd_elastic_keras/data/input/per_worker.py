"""The input if the batch grows with the workers: each worker takes a batch of its own.

An epoch is a sequence of worker batches. A worker batch has `batch_size_per_worker` examples (the
last one may have fewer), or is one of the user's own batches. A step takes the next worker batches,
one for each worker in the order of ranks. The last step of an epoch takes the rest. Only the number
of worker batches per step depends on the workers, so any step can be the first one of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.input.batch_pipeline import BatchPipeline
from hvd_elastic_keras.data.input.fit_epochs import FitInput
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.data.plan.fit_passes import Passes, PassRange
from hvd_elastic_keras.data.plan.partition import step_share_of_worker_batch


class PerWorkerInput(FitInput):
    """An input whose worker batches are the global batches of `inner`.

    Args:
      inner: cuts an epoch as for a single worker.
      index_of: returns the number of an epoch, counted from the first one that reads this input.
      passes: the rule that maps epochs to passes; its steps are worker batches here.
    """

    def __init__(
        self,
        inner: Pipeline | BatchPipeline,
        index_of: Callable[[int], int] = lambda epoch: epoch,
        passes: Passes | None = None,
    ) -> None:
        super().__init__(inner, passes or Passes(), index_of)
        self._inner_input = inner
        self._nothing = inner.nothing

    def worker_batches_left(self, epoch: int, first: int) -> int | None:
        """Returns the number of worker batches of an epoch from number `first` on.

        Returns None if the number is only known after reading to the end.
        """
        count = self.steps(epoch)
        return None if count is None else max(0, count - first)

    def of_worker(self, epoch: int, first: int, rank: int, size: int) -> Iterator[LocalBatch]:
        """Yields a worker's part of the steps of an epoch, from worker batch `first` to its end.

        Args:
          epoch: number of the epoch, as the training counts.
          first: number of the worker batch that rank 0 takes first.
          rank: rank of this worker.
          size: number of workers, which is also the number of worker batches in a step.
        """
        inner, of_pass = self._inner_input, self._range_of(epoch)
        stop = None if of_pass.steps is None else of_pass.offset + of_pass.steps
        first += of_pass.offset
        if isinstance(inner, Pipeline):
            last = inner.partition.steps_per_epoch
            stop = last if stop is None else min(stop, last)
            yield from self._of_examples(inner, of_pass.number, range(first, stop), rank, size)
        else:
            groups = inner.groups(of_pass.number, first, size, stop)
            batches = self._of_batches(inner, of_pass.number, first, rank, groups)
            yield from inner.prepared(of_pass.number, batches, first + rank, size)

    def ids_of_worker_batches(self, epoch: int, first: int, sizes: Sequence[int]) -> list[Ids]:
        """Returns the ids of the examples of successive worker batches, from number `first` on."""
        of_pass = self._range_of(epoch)
        numbered = enumerate(sizes, of_pass.offset + first)
        return self._inner_input.ids(of_pass.number, list(numbered))

    def _range_of(self, epoch: int) -> PassRange:
        return self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)

    def _of_examples(
        self, inner: Pipeline, number: int, worker_batches: range, rank: int, size: int
    ) -> Iterator[LocalBatch]:
        partition = inner.partition
        whole = Share(0, partition.num_micro_batches)
        mine = inner.source.batches(
            number, partition, whole, worker_batches.start + rank, every=size
        )
        for start in worker_batches[::size]:
            numbers = range(start, min(start + size, worker_batches.stop))
            sizes = [partition.examples_of_step(n) for n in numbers]
            ids, data = next(mine) if rank < len(sizes) else ((), self._nothing)
            yield self._local_batch(data, ids, sizes, rank)

    def _of_batches(
        self,
        inner: BatchPipeline,
        number: int,
        first: int,
        rank: int,
        groups: Iterator[list[Structure]],
    ) -> Iterator[LocalBatch]:
        for batches in groups:
            sizes = [structure.num_examples(batch) for batch in batches]
            nothing = structure.cut(batches[0], 0, inner.source.prepare is not None, inner.entries)
            data = batches[rank] if rank < len(batches) else nothing
            own = [(first + rank, sizes[rank] if rank < len(batches) else 0)]
            (ids,) = inner.ids(number, own)
            yield self._local_batch(data, ids, sizes, rank)
            first += len(batches)

    def _local_batch(self, data: Structure, ids: Any, sizes: list[int], rank: int) -> LocalBatch:
        part = step_share_of_worker_batch(sizes, rank, self.micro_batch_size)
        return LocalBatch(data, part, ids, tuple(sizes))
