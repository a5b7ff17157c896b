"""Reads a user's batches in order, repeatedly and from any position of any pass."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import tensorflow as tf

from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.preparation import read_error, reason
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.example_ids import Ids
from hvd_elastic_keras.data.sources.iterators import drop_in_background
from hvd_elastic_keras.observe.notices import notices, progress

log = logging.getLogger(__name__)
PREFETCH = 2
LONG_REPLAY_S = 5.0
"""After a longer replay, a notice tells people how to avoid it."""
_hinted: set[str] = set()
"""Names of the data for which the notice has been shown."""


class ReadBatches(Protocol):
    """Batches in a fixed order in each pass."""

    name: str
    """Name of the data, for messages."""
    batch_spec: Structure
    """Specs of a batch of any size; None where batches have no tensor."""
    batches_per_pass: int | None
    """Number of batches per pass; None if it is unknown or infinite."""
    advice: str
    """Advice for people: which data need no replay.

    Empty if these data need none: any position of a pass can be opened, not only its front.
    """

    is_exclusive: bool
    """Whether an iterator has to be deleted before the next one: it writes files."""

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """Returns the batches of pass `number` from `position` on."""


class PrepareRows(Protocol):
    """Makes rows of the user's batches of raw rows."""

    def __call__(self, number: int, step: int, ids: Ids, rows: Structure) -> Structure:
        """Returns the rows. Threads may call this at the same time.

        Args:
          number: the pass.
          step: position of the batch in the pass.
          ids: shape [rows], int64; the number of each row in the pass.
          rows: these rows of a batch that `open` has given.

        Raises:
          DataError: the user's function fails.
        """


class BatchSource(ReadBatches, Protocol):
    """The batches of a `fit`."""

    has_one_size: bool
    """Whether TensorFlow knows before reading that all batches have the same number of rows."""
    first: Structure | None
    """The first batch of pass 0, if it is known without reading that pass."""
    prepare: PrepareRows | None
    """Makes rows of the user's batches of the rows that `open` gives; None if they are the same."""

    def on_epoch_begin(self) -> None:
        """Called when Keras begins to read an epoch."""

    def on_epoch_end(self) -> None:
        """Called when Keras has read an epoch to its end, or resets data for an evaluation."""

    def on_stop(self) -> None:
        """Called when a callback has stopped an epoch early."""

    def finish(self, epochs: int, *, stopped: bool) -> None:
        """Leaves the data as after a number of epochs of a `fit`, or evaluations.

        Args:
          epochs: number of epochs, or of evaluations.
          stopped: whether a callback has ended the last epoch during its training.
        """


class BatchReader:
    """Reads batches one after the other and remembers the last `keep` of them.

    After a change of membership, the batches of the same step are asked for again. They are then
    not read twice.

    Args:
      log: notes the batches that are read.
    """

    def __init__(self, source: ReadBatches, log: BatchLog) -> None:
        self._source = source
        self._iterator: list[Iterator[Structure]] = []
        self._pass = -1
        self._next = 0
        self._last: collections.deque[Structure] = collections.deque()
        self._ahead: list[Structure] = []
        """A batch that `left_over` has read ahead."""
        self._failure: Exception | None = None
        """The error that has ended this pass."""
        self._log = log
        self.keep = 1

    def seek(self, number: int, position: int, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Makes sure that `batch(position)` of pass `number` can be read at once.

        Args:
          goes_on: called between replayed batches; if it returns False, the replay stops early.
        """
        oldest = self._next - len(self._last)
        if number != self._pass or position < oldest:
            self.close()
            start = 0 if self._source.advice else position
            self._pass, self._next, self._last = number, start, collections.deque()
            self._ahead, self._failure = [], None
            self._iterator = [self._source.open(number, start)]
        if self._next < position:
            self._replay(position, goes_on)

    def close(self) -> None:
        """Ends the pass. It waits for the threads of an iterator that has to be the only one."""
        if self._source.is_exclusive:
            self._iterator.clear()
        else:
            drop_in_background(self._iterator)
        self._pass = -1

    def _replay(self, position: int, goes_on: Callable[[], bool]) -> None:
        """Reads everything before `position`; that is the only way to get there."""
        began, name = time.monotonic(), self._source.name
        what = f"reading {name} again up to the current step"
        with progress(what, position - self._next, "batches") as bar:
            while self._next < position and goes_on() and self.batch(self._next) is not None:
                bar.update()
        seconds = time.monotonic() - began
        log.info("read %s again up to batch %d in %.1f s", name, self._next, seconds)
        if seconds > LONG_REPLAY_S and name not in _hinted:
            _hinted.add(name)
            notices.tell(
                f"reading {name} again up to the current step took {seconds:.0f} s. "
                f"{self._source.advice}; see docs/input.md."
            )

    def batch(self, position: int) -> Structure:
        """Returns the batch at a position of the pass, or None if the pass has ended before.

        Raises:
          DataError: TensorFlow cannot read the batch.
        """
        while self._next <= position:
            batch = self._following()
            if batch is None:
                return None
            self._log.note(self._pass, self._next, batch)
            self._last.append(batch)
            self._next += 1
            while len(self._last) > self.keep:
                self._last.popleft()
        return self._last[position - self._next]

    def left_over(self) -> int:
        """Returns the number of examples in the next batch; 0 if there is no batch left."""
        if not self._ahead:
            self._ahead.append(self._following())
        return 0 if self._ahead[0] is None else structure.num_examples(self._ahead[0])

    def _following(self) -> Structure:
        if self._ahead:
            return self._ahead.pop()
        if self._failure is not None:
            raise self._failure  # the iterator itself would continue after the failed batch
        try:
            return next(self._iterator[0], None)
        except tf.errors.CancelledError:
            raise
        except tf.errors.OpError as error:
            self._failure = read_error(
                f"Batch {self._next} of pass {self._pass} over {self._source.name} cannot be read: "
                f"{reason(error)}",
                error,
            )
            raise self._failure from error
        except Exception as error:  # the user's object may raise anything
            self._failure = error
            raise
