"""The input of one worker in one round, from a source that gives whole batches."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.preparation import AHEAD, prepared_ahead
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.input.interfaces import LocalBatch
from hvd_elastic_keras.data.plan.example_ids import BATCH_STRIDE, Ids
from hvd_elastic_keras.data.plan.partition import StepShare, step_share_of_batch
from hvd_elastic_keras.data.sources.reader import BatchReader, BatchSource
from hvd_elastic_keras.observe.notices import notices


class BatchPipeline:
    """Reads whole global batches of any size, and uses this worker's part of each.

    Args:
      source: the user's batches.
      micro_batch_size: a function that takes the size of the first batch and returns the examples
        per forward and backward pass.
    """

    def __init__(self, source: BatchSource, micro_batch_size: Callable[[int], int]) -> None:
        self.source = source
        self.log = BatchLog(in_own_folders=source.prepare is not None)
        self._reader = BatchReader(source, self.log)
        self._prepares = source.prepare is not None
        self._first: Structure | None = None
        """The first batch, until the first step is read: it is asked for several times before."""
        first = self.first_batch()
        self._per_row = structure.per_row(first)
        self._nothing = structure.cut(first, 0, 0, self._per_row)
        size = structure.num_examples(first)
        self._micro_batch_size = micro_batch_size(size)
        self._global_batch_size = size
        self._counted: int | None = None
        self._expected: int | None = None
        """The count from a checkpoint, until reading has confirmed it."""
        self._ended_at: int | None = None
        """The position at which this worker last found the end of a pass."""
        self._cut_off: set[int] = set()

    @property
    def batch_spec(self) -> Structure:
        return self.source.batch_spec

    @property
    def per_row(self) -> Sequence[int]:
        return self._per_row

    @property
    def nothing(self) -> Structure:
        return self._nothing

    @property
    def entries(self) -> Sequence[int] | None:
        """Entries of each tensor per row, as batches are read; None: 1."""
        return None if self._prepares else self._per_row

    @property
    def global_batch_size(self) -> int:
        return self._global_batch_size

    @property
    def has_one_size(self) -> bool:
        return self.source.has_one_size

    @property
    def micro_batch_size(self) -> int:
        return self._micro_batch_size

    @property
    def num_examples(self) -> int | None:
        return None

    @property
    def num_micro_batches(self) -> int:
        return -(-self._global_batch_size // self._micro_batch_size)

    def cut_into(self, micro_batch_size: int) -> None:
        self._micro_batch_size = micro_batch_size

    @property
    def batches_per_pass(self) -> int | None:
        known = self.source.batches_per_pass
        return self._counted if known is None else known

    @property
    def from_front(self) -> bool:
        return bool(self.source.advice)

    def read_up_to(self, epoch: int, step: int, goes_on: Callable[[], bool]) -> None:
        if self.from_front and step > 0:
            self._reader.seek(epoch, step, goes_on)

    @property
    def ends_unannounced(self) -> bool:
        return self.source.batches_per_pass is None

    def know_batches_per_pass(self, count: int | None) -> None:
        self._counted = count

    def expect_batches_per_pass(self, count: int | None) -> None:
        if self.ends_unannounced:
            self._counted = self._expected = count

    def confirm_end(self) -> None:
        if self._ended_at is not None:
            self._counted = self._ended_at

    def cut_off(self, epoch: int) -> bool:
        return epoch in self._cut_off

    def steps(self, epoch: int) -> int | None:
        return self.batches_per_pass

    def batches(
        self, epoch: int, share: Share, first_step: int, stop: int | None = None
    ) -> Iterator[LocalBatch]:
        """See `PassInput`. An epoch is one pass here."""
        self._first = None
        return self.prepared(epoch, self._parts(epoch, share, first_step, stop), first_step)

    def prepared(
        self, number: int, batches: Iterator[LocalBatch], step: int, every: int = 1
    ) -> Iterator[LocalBatch]:
        """Prepares a worker's rows of batches of a pass, a few batches ahead.

        Args:
          batches: their data are rows as they are read; any row for a worker without rows.
          step: position of the first batch in the pass. The others follow `every` batches apart.
        """
        prepare = self.source.prepare
        if prepare is None:
            yield from batches
            return

        def rows(numbered: tuple[int, LocalBatch]) -> Structure:
            position, batch = numbered
            if not len(batch.ids):  # its shape is the shape of any row
                row = prepare(number, position, _ids_of_batch(position, 1), batch.data)
                return structure.cut(row, 0, 0)
            return prepare(number, position, batch.ids, batch.data)

        numbered = zip(itertools.count(step, every), batches)
        for (_, batch), data in prepared_ahead(numbered, rows):
            yield dataclasses.replace(batch, data=data)

    def _parts(
        self, epoch: int, share: Share, first_step: int, stop: int | None
    ) -> Iterator[LocalBatch]:
        """Yields this worker's rows as they are read."""
        # Batches that are prepared ahead are asked for again after a change of membership.
        self._reader.keep = 1 + AHEAD * self._prepares
        self._reader.seek(epoch, first_step)
        step = first_step
        while stop is None or step < stop:
            batch = self._reader.batch(step)
            if batch is None:
                break
            size = structure.num_examples(batch)
            part = self.part(step, share, size)
            ids = _ids_of_batch(step, size)[part.start : part.stop]
            if step + 1 == self._counted:
                self._look_behind(epoch)
            is_whole = not (self._prepares or structure.can_be_cut(batch, self._per_row))
            entries = [0 for _ in self._per_row] if is_whole else self.entries
            low, high = part.start, part.stop
            if self._prepares and low == high:
                low, high = 0, 1
            own = structure.cut(batch, low, high, entries)
            yield LocalBatch(own, part, ids, is_whole=is_whole)
            step += 1
        if step != stop:
            self._note_end(step)

    def groups(
        self, number: int, first: int, size: int, stop: int | None = None
    ) -> Iterator[list[Structure]]:
        """Yields groups of `size` successive batches of a pass, each whole.

        At the end of the pass, a group may be smaller. Batches from number `stop` on are left for
        later.
        """
        self._first = None
        self._reader.keep = size * (1 + AHEAD * self._prepares)
        self._reader.seek(number, first)
        while stop is None or first < stop:
            wanted = first + size if stop is None else min(first + size, stop)
            end = min(wanted, self.batches_per_pass or wanted)
            read = (self._reader.batch(position) for position in range(first, end))
            batches = list(itertools.takewhile(lambda batch: batch is not None, read))
            for number_of_batch, batch in enumerate([] if self._prepares else batches, first):
                structure.check_cut(
                    batch, self._per_row, self.source.name, f"Batch {number_of_batch}"
                )
            first += len(batches)
            if first == self._counted:
                self._look_behind(number)
            elif first < wanted:
                self._note_end(first)
            if not batches:
                return
            yield batches

    def _look_behind(self, number: int) -> None:
        """Checks whether a pass goes on after the number of batches that earlier passes had."""
        if not self.ends_unannounced:
            return
        name, count = self.source.name, self._counted
        if not self._reader.left_over():
            self._expected = None
        elif self._expected is not None:
            raise DataError(_CHANGED.format(name=name, now=f"more than {count}", count=count))
        else:
            if not self._cut_off:
                notices.tell(
                    f"warning: {name} gives more batches in some epochs than in the first one, "
                    f"which had {count}. As in Keras, no more than these are used. Give all "
                    "epochs the same length to use all of them."
                )
            self._cut_off.add(number)

    def _note_end(self, count: int) -> None:
        """Notes the end of a pass whose length was not announced."""
        expected = self._expected
        if expected is not None and count != expected:
            raise DataError(_CHANGED.format(name=self.source.name, now=count, count=expected))
        self._ended_at = count

    def on_epoch_begin(self) -> None:
        self.source.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.source.on_epoch_end()

    def on_stop(self) -> None:
        self.source.on_stop()

    def finish_epochs(self, epochs: int, *, stopped: bool) -> None:
        self._reader.close()
        self.source.finish(epochs, stopped=stopped)

    def first_batch(self) -> Structure:
        if self.source.first is not None:
            return self.source.first
        if self._first is not None:
            return self._first
        self._reader.seek(0, 0)
        batch = self._reader.batch(0)
        if self.source.prepare is None:
            return batch
        ids = _ids_of_batch(0, structure.num_examples(batch))
        self._first = self.source.prepare(0, 0, ids, batch)
        return self._first

    def part(self, step: int, share: Share, num_examples: int) -> StepShare:
        return step_share_of_batch(
            num_examples, self._micro_batch_size, share, self.num_micro_batches
        )

    def ids(self, epoch: int, steps: Sequence[tuple[int, int]]) -> list[Ids]:
        """See `ExamplePlan`. Examples are numbered within each batch, which may have any size."""
        return [_ids_of_batch(step, count) for step, count in steps]

    def ids_of_epoch(self, epoch: int) -> None:
        """Returns None: the ids are only known after reading the pass to its end."""


_CHANGED = (
    "{name} has {now} batches per pass, but had {count} when the checkpoint was made that this "
    "training goes on from. Going on would repeat examples or lose some. Use the same data again, "
    "or another job_dir."
)


def _ids_of_batch(number: int, size: int) -> Ids:
    return np.arange(size, dtype=np.int64) + number * BATCH_STRIDE
