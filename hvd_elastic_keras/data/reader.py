"""Reads a user's batches in order, again and again, from any position of any pass."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data import structure
from hvd_elastic_keras.data.structure import Structure
from hvd_elastic_keras.errors import DataError

log = logging.getLogger(__name__)
PREFETCH = 2


class BatchSource(Protocol):
    """Batches with a fixed order in each pass."""

    batch_spec: Structure
    """Specs of a batch of any size; None where batches have nothing."""
    batches_per_pass: int | None
    """None if unknown, or infinite."""

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """The batches of pass `number` from `position` on."""


class BatchReader:
    """Reads batches one after the other and remembers the last `keep` of them.

    After a change of membership those of the same step are asked for again; nothing is read twice
    then.
    """

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._iterator: list[Iterator[Structure]] = []
        self._pass = -1
        self._next = 0
        self._last: collections.deque[Structure] = collections.deque()
        self.keep = 1

    def seek(self, number: int, position: int) -> None:
        """Makes sure that `batch(position)` of pass `number` can be read."""
        oldest = self._next - len(self._last)
        if number == self._pass and position >= oldest:
            return
        drop_in_background(self._iterator)
        self._pass, self._next, self._last = number, position, collections.deque()
        self._iterator = [self._source.open(number, position)]

    def batch(self, position: int) -> Structure:
        """The batch at a position of the pass, or None if that has ended before."""
        while self._next <= position:
            batch = next(self._iterator[0], None)
            if batch is None:
                return None
            self._last.append(batch)
            self._next += 1
            while len(self._last) > self.keep:
                self._last.popleft()
        return self._last[position - self._next]


class DatasetBatches:
    """A `tf.data.Dataset` of batches.

    A dataset that is shuffled anew in each pass takes its seeds one after the other, so pass n is
    the n-th iterator of this process: iterators for earlier passes are made first. The position
    within the pass is reached by reading.

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
        self._dataset = dataset
        self._iterators_per_pass = 2 if repeats_known_length and cardinality > 0 else 1
        self._made = 0

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """See `BatchSource`."""
        while self._made < number * self._iterators_per_pass:
            drop_in_background([iter(self._dataset)])  # takes the seed of that pass
            self._made += 1
        self._made += 1
        if position:
            log.info("reading up to batch %d of pass %d of the input", position, number)
        dataset = self._dataset.skip(position) if position else self._dataset
        return iter(dataset.prefetch(PREFETCH))


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
        """See `BatchSource`."""
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


def drop_in_background(iterator: list[Any]) -> None:
    """Deletes an iterator without waiting for its threads, which may take seconds.

    Args:
      iterator: holds the only reference to it; the last one to go would do the waiting.
    """
    threading.Thread(target=iterator.clear, name="elastic-drop-iterator", daemon=True).start()
