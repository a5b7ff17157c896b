"""The epochs of one `fit`, laid on the passes over its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.input.interfaces import Input, LocalBatch
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.data.plan.fit_passes import Passes
from hvd_elastic_keras.data.plan.partition import StepShare


class FitInput:
    """The input of one `fit`: its epochs laid on the passes over the data.

    Args:
      inner: reads the passes.
      passes: how epochs lie on them.
      index_of: number of an epoch, counted from the first one that reads this input.
    """

    def __init__(self, inner: Input, passes: Passes, index_of: Callable[[int], int]) -> None:
        self._inner = inner
        self._passes = passes
        self._index_of = index_of

    @property
    def batch_spec(self) -> Structure:
        return self._inner.batch_spec

    @property
    def global_batch_size(self) -> int:
        return self._inner.global_batch_size

    @property
    def micro_batch_size(self) -> int:
        return self._inner.micro_batch_size

    @property
    def num_examples(self) -> int | None:
        return self._inner.num_examples

    @property
    def num_micro_batches(self) -> int:
        return self._inner.num_micro_batches

    def cut_into(self, micro_batch_size: int) -> None:
        self._inner.cut_into(micro_batch_size)

    @property
    def batches_per_pass(self) -> int | None:
        return self._inner.batches_per_pass

    @property
    def log(self) -> BatchLog | None:
        return self._inner.log

    @property
    def from_front(self) -> bool:
        return self._inner.from_front

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        self._inner.read_up_to(of_pass.number, of_pass.offset + step, goes_on)

    @property
    def ends_unannounced(self) -> bool:
        return self._inner.ends_unannounced

    def know_batches_per_pass(self, count: int | None) -> None:
        self._inner.know_batches_per_pass(count)

    def expect_batches_per_pass(self, count: int | None) -> None:
        self._inner.expect_batches_per_pass(count)

    def confirm_end(self) -> None:
        self._inner.confirm_end()

    def cut_off(self, epoch: int) -> bool:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        return self._inner.cut_off(of_pass.number)

    def steps(self, epoch: int) -> int | None:
        return self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass).steps

    def batches(self, epoch: int, share: Share, first_step: int) -> Iterator[LocalBatch]:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        if of_pass.steps is not None and first_step >= of_pass.steps:
            return
        batches = self._inner.batches(of_pass.number, share, of_pass.offset + first_step)
        step = first_step
        # Not one batch more than asked for: it might take long, or be the end of a generator.
        while of_pass.steps is None or step < of_pass.steps:
            batch = next(batches, None)
            if batch is None:
                return
            yield batch
            step += 1

    def first_batch(self) -> Structure:
        return self._inner.first_batch()

    def part(self, step: int, share: Share, num_examples: int) -> StepShare:
        return self._inner.part(step, share, num_examples)

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        numbered = [(of_pass.offset + step, count) for step, count in steps]
        return self._inner.ids(of_pass.number, numbered)

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        whole = not of_pass.offset and of_pass.steps == self.batches_per_pass
        return self._inner.ids_of_epoch(of_pass.number) if whole else None
