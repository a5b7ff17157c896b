"""The batches of a `keras.utils.PyDataset` as `fit` reads them."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.sources import global_draws
from hvd_elastic_keras.data.sources.reader import PREFETCH, PrepareRows
from hvd_elastic_keras.keras_internals.stateless_draws import mixed


class PyDatasetBatches:
    """The batches of a `keras.utils.PyDataset`, which returns any batch by its index.

    If there is a `call_seed`, and the user's code draws random numbers from Python's `random` or
    from NumPy for its first batches, both are seeded for each call, one call at a time: the numbers
    follow from pass and index. A worker that joins later has made none of the earlier calls.

    Args:
      dataset: the user's object; its hooks are called as `fit` calls them.
      standardize: Keras's conversion of a batch, which also applies `class_weight`.
      shuffle: whether the order of batches differs from pass to pass.
      order_seed: determines the orders. None: the present state of Python's `random` does, as in
        Keras.
      call_seed: random numbers that the user's code draws for a batch follow from it. None: from
        all earlier calls, as in Keras.

    Attributes:
      draws: whether the generators are seeded for each call.
    """

    name = "the PyDataset"
    advice = ""
    is_exclusive = False
    has_one_size = False
    prepare: PrepareRows | None = None

    def __init__(
        self,
        dataset: Any,
        standardize: Any,
        shuffle: bool,
        order_seed: int | None,
        call_seed: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._standardize = standardize
        self.batches_per_pass = dataset.num_batches
        self._shuffle = shuffle and self.batches_per_pass is not None
        self._seed = order_seed
        self._call_seed = call_seed
        self.draws = False
        self._random_state = random.getstate()
        self._random = random.Random()
        self._drawn = 0
        """Number of orders that `_random` has drawn; `_order` is the last one."""
        self._order: list[int] = []
        known = self.batches_per_pass
        if known == 0:
            raise DataError("The PyDataset has no batches. Give at least one.")
        state = global_draws.state()
        some = [self._load(0, i) for i in range(2 if known is None else min(2, known))]
        if call_seed is not None and not global_draws.are_same(state, global_draws.state()):
            self.draws = True
            global_draws.set_state(state)
            global_draws.tell(
                "random numbers that the PyDataset draws from Python or NumPy follow from the "
                "number of each batch. They are the same for any number of workers, but not those "
                "of plain fit."
            )
        self.batch_spec = _common_spec(some)
        structure.check_sliceable(self.batch_spec, "the PyDataset")
        # This does not call `open`, which would read ahead before the first `on_epoch_begin`.
        index = next(iter(self._indices(0, 0)))
        known_already = index < len(some) and not self.draws
        self.first: Structure | None = some[index] if known_already else self._load(0, index)

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """Opens a pass at any position."""
        return self._read(number, self._indices(number, position))

    def on_epoch_begin(self) -> None:
        """Calls the user's hook."""
        with global_draws.undisturbed():
            self._dataset.on_epoch_begin()
        if self._shuffle and self._seed is None:
            # The script must draw the same random numbers afterwards as after plain `fit`.
            random.shuffle(list(range(self.batches_per_pass)))

    def on_epoch_end(self) -> None:
        """Calls the user's hook."""
        with global_draws.undisturbed():
            self._dataset.on_epoch_end()

    def on_stop(self) -> None:
        """Does nothing: Keras calls no hook in this case."""

    def finish(self, epochs: int, *, stopped: bool) -> None:
        """Does nothing: hooks are called, and orders are drawn, at their own time."""

    def _indices(self, number: int, position: int) -> Iterable[int]:
        size = self.batches_per_pass
        if size is None:
            return itertools.count(position)
        if not self._shuffle:
            return range(position, size)
        if self._seed is None:
            return self._order_of_keras(number, size)[position:]
        order = tf.random.experimental.index_shuffle(
            tf.range(size), seed=[self._seed, number], max_index=size - 1
        )
        return [int(i) for i in order.numpy()[position:]]

    def _order_of_keras(self, number: int, size: int) -> list[int]:
        """Returns the order of a pass: each pass takes the next order of Python's `random`.

        It is drawn from a copy, because other code may draw from `random` itself meanwhile.
        """
        if number < self._drawn - 1 or not self._drawn:
            self._random.setstate(self._random_state)
            self._drawn = 0
        while self._drawn <= number:
            self._order = list(range(size))
            self._random.shuffle(self._order)
            self._drawn += 1
        return self._order

    def _read(self, number: int, indices: Iterable[int]) -> Iterator[Structure]:
        """Loads a few batches ahead, in threads, and yields them in order."""
        workers = max(1, self._dataset.workers)
        ahead = max(PREFETCH, min(workers * PREFETCH, self._dataset.max_queue_size))
        todo = iter(indices)
        with concurrent.futures.ThreadPoolExecutor(workers, "elastic-input") as pool:
            loading = collections.deque(
                pool.submit(self._load, number, i) for i in itertools.islice(todo, ahead)
            )
            try:
                while loading:
                    batch = loading.popleft().result()
                    for i in itertools.islice(todo, 1):
                        loading.append(pool.submit(self._load, number, i))
                    yield batch
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _load(self, number: int, index: int) -> Structure:
        if not self.draws:
            batch = self._dataset[index]
        else:
            with global_draws.seeded(mixed(self._call_seed or 0, number, index)):
                batch = self._dataset[index]
        return tf.nest.map_structure(_to_tensor, self._standardize(batch))


def _to_tensor(value: Any) -> Any:
    if value is None or isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
        return value
    array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(keras.config.floatx())
    return tf.convert_to_tensor(array)


def _common_spec(batches: list[Structure]) -> Structure:
    """Returns the spec that fits all batches: dimensions in which they differ become None."""

    def merge(*leaves: Any) -> Any:
        if leaves[0] is None:
            return None
        spec = structure.batched(leaves[0])
        for leaf in leaves[1:]:
            spec = spec.most_specific_common_supertype([structure.batched(leaf)])
        return spec

    return tf.nest.map_structure(merge, *batches)
