"""Maps the epochs of one `fit` to passes over its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.input.interfaces import EpochHooks, LocalBatch, Moment, PassInput
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.data.plan.fit_passes import Passes
from hvd_elastic_keras.data.plan.partition import StepShare


class FitInput:
    """The input of one `fit`. Its epochs are mapped to passes over the data.

    Args:
      inner: reads the passes.
      passes: the rule that maps epochs to passes.
      index_of: returns the number of an epoch, counted from the first one that reads this input.
    """

    def __init__(self, inner: PassInput, passes: Passes, index_of: Callable[[int], int]) -> None:
        self.inner = inner
        self._passes = passes
        self._index_of = index_of
        self._hooks: EpochHooks | None = None

    @property
    def batch_spec(self) -> Structure:
        return self.inner.batch_spec

    @property
    def per_row(self) -> Sequence[int] | None:
        return self.inner.per_row

    @property
    def nothing(self) -> Structure:
        return self.inner.nothing

    @property
    def global_batch_size(self) -> int:
        return self.inner.global_batch_size

    @property
    def has_one_size(self) -> bool:
        return self.inner.has_one_size

    @property
    def micro_batch_size(self) -> int:
        return self.inner.micro_batch_size

    @property
    def num_examples(self) -> int | None:
        return self.inner.num_examples

    @property
    def num_micro_batches(self) -> int:
        return self.inner.num_micro_batches

    def cut_into(self, micro_batch_size: int) -> None:
        self.inner.cut_into(micro_batch_size)

    @property
    def batches_per_pass(self) -> int | None:
        return self.inner.batches_per_pass

    @property
    def log(self) -> BatchLog | None:
        return self.inner.log

    @property
    def from_front(self) -> bool:
        return self.inner.from_front

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        self.inner.read_up_to(of_pass.number, of_pass.offset + step, goes_on)

    @property
    def ends_unannounced(self) -> bool:
        return self.inner.ends_unannounced

    def know_batches_per_pass(self, count: int | None) -> None:
        self.inner.know_batches_per_pass(count)

    def expect_batches_per_pass(self, count: int | None) -> None:
        self.inner.expect_batches_per_pass(count)

    def confirm_end(self) -> None:
        self.inner.confirm_end()

    def cut_off(self, epoch: int) -> bool:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        return self.inner.cut_off(of_pass.number)

    def steps(self, epoch: int) -> int | None:
        return self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass).steps

    def batches(self, epoch: int, share: Share, first_step: int) -> Iterator[LocalBatch]:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        if of_pass.steps is not None and first_step >= of_pass.steps:
            return
        # Reading a batch more might take long, or be the end of a generator.
        stop = None if of_pass.steps is None else of_pass.offset + of_pass.steps
        yield from self.inner.batches(of_pass.number, share, of_pass.offset + first_step, stop)

    def first_batch(self) -> Structure:
        return self.inner.first_batch()

    def call_hooks(
        self, evaluate: FitInput | None, evaluates_after: Callable[[int], bool], initial_epoch: int
    ) -> None:
        """Makes `come_to` and `stop` call the hooks of these data and of the evaluation's data."""
        other = None if evaluate is None else evaluate.inner
        self._hooks = EpochHooks(self.inner, other, evaluates_after, initial_epoch)

    def come_to(self, epoch: int, moment: Moment) -> None:
        if self._hooks is not None:
            self._hooks.come_to(epoch, moment)

    def stop(self, epoch: int) -> None:
        if self._hooks is not None:
            self._hooks.stop(epoch)

    def finish(self, epoch: int) -> None:
        stopped = self._hooks is not None and self._hooks.stopped
        if not stopped:
            self.come_to(epoch - 1, Moment.EVALUATION_ENDS)
        self.inner.finish_epochs(self._index_of(epoch), stopped=stopped)

    def part(self, step: int, share: Share, num_examples: int) -> StepShare:
        return self.inner.part(step, share, num_examples)

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        numbered = [(of_pass.offset + step, count) for step, count in steps]
        return self.inner.ids(of_pass.number, numbered)

    def ids_of_epoch(self, epoch: int) -> Iterable[int] | None:
        of_pass = self._passes.range_of_epoch(self._index_of(epoch), self.batches_per_pass)
        whole = not of_pass.offset and of_pass.steps == self.batches_per_pass
        return self.inner.ids_of_epoch(of_pass.number) if whole else None
