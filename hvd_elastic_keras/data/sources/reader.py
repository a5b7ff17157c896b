"""Reads a user's batches in order, again and again, from any position of any pass."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.preparation import reason
from hvd_elastic_keras.data.examples.read_errors import read_error
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.sources.iterators import NumberedIterators, drop_in_background
from hvd_elastic_keras.observe.notices import notices, progress

log = logging.getLogger(__name__)
PREFETCH = 2
LONG_REPLAY_S = 5.0
"""After a longer replay people are told how to do without."""
_hinted: set[str] = set()
"""Data of which they have been told."""


class BatchSource(Protocol):
    """Batches with a fixed order in each pass."""

    name: str
    """Of the data, for messages."""
    batch_spec: Structure
    """Specs of a batch of any size; None where batches have nothing."""
    batches_per_pass: int | None
    """None if unknown, or infinite."""
    advice: str
    """How people get data that need no replay. Empty if these are such data: any position of a pass
    can be opened, and not its front only."""

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """The batches of pass `number` from `position` on."""


class BatchReader:
    """Reads batches one after the other and remembers the last `keep` of them.

    After a change of membership those of the same step are asked for again; nothing is read twice
    then.

    Args:
      log: takes note of what is read.
    """

    def __init__(self, source: BatchSource, log: BatchLog) -> None:
        self._source = source
        self._iterator: list[Iterator[Structure]] = []
        self._pass = -1
        self._next = 0
        self._last: collections.deque[Structure] = collections.deque()
        self._ahead: list[Structure] = []
        """What `left_over` has looked at."""
        self._failure: Exception | None = None
        """What has ended this pass."""
        self._log = log
        self.keep = 1

    def seek(self, number: int, position: int, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Makes sure that `batch(position)` of pass `number` can be read at once.

        Args:
          goes_on: asked between batches that are replayed; if it says no, nothing is made sure.
        """
        oldest = self._next - len(self._last)
        if number != self._pass or position < oldest:
            drop_in_background(self._iterator)
            start = 0 if self._source.advice else position
            self._pass, self._next, self._last = number, start, collections.deque()
            self._ahead, self._failure = [], None
            self._iterator = [self._source.open(number, start)]
        if self._next < position:
            self._replay(position, goes_on)

    def _replay(self, position: int, goes_on: Callable[[], bool]) -> None:
        """Reads what lies before `position`; that is the only way to get there."""
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
        """The batch at a position of the pass, or None if that has ended before.

        Raises:
          DataError: TensorFlow cannot read it.
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
        """Examples of the batch that comes after those read so far; 0 if there is none."""
        if not self._ahead:
            self._ahead.append(self._following())
        return 0 if self._ahead[0] is None else structure.num_examples(self._ahead[0])

    def _following(self) -> Structure:
        if self._ahead:
            return self._ahead.pop()
        if self._failure is not None:
            raise self._failure  # the iterator would go on behind it
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


class DatasetBatches:
    """A `tf.data.Dataset` of batches, of which a position within a pass is reached by reading.

    Args:
      dataset: of batches.
      name: of the data, for messages.
      repeats_known_length: whether `fit` makes two iterators per pass, of which it reads the
        first: Keras does so if it knows the length of a pass and an epoch is one. The seeds are to
        be those that each pass has there.
    """

    def __init__(
        self, dataset: tf.data.Dataset, name: str, repeats_known_length: bool = False
    ) -> None:
        self.batch_spec = tf.nest.map_structure(structure.batched, dataset.element_spec)
        structure.check_sliceable(dataset.element_spec, name)
        cardinality = int(dataset.cardinality())
        self.batches_per_pass = cardinality if cardinality >= 0 else None
        if cardinality == 0:
            raise DataError(f"{name} is empty. Give at least one batch.")
        self.name = name
        self.advice = (
            "Arrays and a keras.utils.PyDataset start anywhere at once, and with "
            "hvd_elastic_keras.Trainer so does any source with random access"
        )
        per_pass = 2 if repeats_known_length and cardinality > 0 else 1
        self._iterators = NumberedIterators(lambda number: dataset, name, per_pass)

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """From the front: a dataset starts nowhere else, so `position` is 0."""
        return self._iterators.of_pass(number, lambda dataset: dataset.prefetch(PREFETCH))


class PyDatasetBatches:
    """A `keras.utils.PyDataset`, which gives any batch by its index.

    Args:
      dataset: the user's object; its hooks are called as `fit` calls them.
      standardize: Keras's conversion of a batch, which also applies `class_weight`.
      shuffle: whether the order of batches is another one in each pass.
      seed: the orders follow from it.
      resets: whether Keras resets the data before each pass, which calls `on_epoch_end` too (it
        does so in validation).
    """

    name = "the PyDataset"
    advice = ""

    def __init__(
        self, dataset: Any, standardize: Any, shuffle: bool, seed: int, resets: bool = False
    ) -> None:
        self._dataset = dataset
        self._standardize = standardize
        self.batches_per_pass = dataset.num_batches
        self._shuffle = shuffle and self.batches_per_pass is not None
        self._seed = seed
        self._resets = resets
        self._begun = 0
        self._open = False
        known = self.batches_per_pass
        if known == 0:
            raise DataError("The PyDataset has no batches. Give at least one.")
        first = [self._load(i) for i in range(2 if known is None else min(2, known))]
        self.batch_spec = _common_spec(first)
        structure.check_sliceable(self.batch_spec, "the PyDataset")

    def open(self, number: int, position: int) -> Iterator[Structure]:
        self._end_pass()
        while self._begun < number:
            self._begin_pass()
            self._end_pass()
        self._begin_pass()
        return self._read(self._indices(number, position))

    def _indices(self, number: int, position: int) -> Iterable[int]:
        size = self.batches_per_pass
        if size is None:
            return itertools.count(position)
        if not self._shuffle:
            return range(position, size)
        order = tf.random.experimental.index_shuffle(
            tf.range(size), seed=[self._seed, number], max_index=size - 1
        )
        return [int(i) for i in order.numpy()[position:]]

    def _read(self, indices: Iterable[int]) -> Iterator[Structure]:
        """Loads a few batches ahead, in threads, and yields them in order."""
        workers = max(1, self._dataset.workers)
        ahead = max(PREFETCH, min(workers * PREFETCH, self._dataset.max_queue_size))
        todo = iter(indices)
        with concurrent.futures.ThreadPoolExecutor(workers, "elastic-input") as pool:
            loading = collections.deque(
                pool.submit(self._load, i) for i in itertools.islice(todo, ahead)
            )
            try:
                while loading:
                    batch = loading.popleft().result()
                    loading.extend(pool.submit(self._load, i) for i in itertools.islice(todo, 1))
                    yield batch
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        self._end_pass()

    def _load(self, index: int) -> Structure:
        return tf.nest.map_structure(_to_tensor, self._standardize(self._dataset[index]))

    def _begin_pass(self) -> None:
        if self._resets:
            self._dataset.on_epoch_end()
        self._dataset.on_epoch_begin()
        self._begun += 1
        self._open = True

    def _end_pass(self) -> None:
        if self._open:
            self._open = False
            self._dataset.on_epoch_end()


def _to_tensor(value: Any) -> Any:
    if value is None or isinstance(value, tf.Tensor | tf.RaggedTensor):
        return value
    array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(keras.config.floatx())
    return tf.convert_to_tensor(array)


def _common_spec(batches: list[Structure]) -> Structure:
    """The spec that fits all batches: dimensions in which they differ become None."""

    def merge(*leaves: Any) -> Any:
        if leaves[0] is None:
            return None
        spec = structure.batched(leaves[0])
        for leaf in leaves[1:]:
            spec = spec.most_specific_common_supertype([structure.batched(leaf)])
        return spec

    return tf.nest.map_structure(merge, *batches)
