"""Batches as `fit` reads them: of a `tf.data.Dataset`, or of a `keras.utils.PyDataset`."""

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
from hvd_elastic_keras.data.examples.preparation import Preparation
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.example_ids import BATCH_STRIDE, Ids
from hvd_elastic_keras.data.plan.fit_passes import FitIterators, Reader
from hvd_elastic_keras.data.sources import cache_files, global_draws, iterators
from hvd_elastic_keras.data.sources.global_draws import GeneratorDraws
from hvd_elastic_keras.data.sources.iterators import Form, NumberedIterators
from hvd_elastic_keras.data.sources.reader import PREFETCH, BatchSource, PrepareRows
from hvd_elastic_keras.data.sources.split_dataset import SplitDataset
from hvd_elastic_keras.keras_internals import dataset_parts
from hvd_elastic_keras.keras_internals.stateless_draws import mixed

TOLD = (
    "{name}: generators of from_generator draw from Python or NumPy as if nothing else did "
    "meanwhile. The numbers are the same for any number of workers, but not always those of plain "
    "fit."
)
AFTERWARDS = len(Reader)
"""Stands for a reader of the data after the training."""
ADVICE = (
    "Arrays and a keras.utils.PyDataset start anywhere at once, and with "
    "hvd_elastic_keras.Trainer so does any source with random access"
)


class DatasetBatches:
    """A `tf.data.Dataset` of batches. A position within a pass can only be reached by reading.

    Args:
      dataset: dataset of batches.
      name: name of the data, for messages.
      made: the iterators that Keras makes over the dataset; the passes get their seeds. None: one
        iterator for each pass.
      reader: which of the readers this is.
      beside: the batches of the training, if the evaluation reads the same dataset, or another one
        that takes the seeds of one `shuffle` in turn with it.
      first: the first batch, if it must not be read here because an iterator would take seeds.
      parts: the dataset without its maps, if each worker runs the maps on its own rows.
      seed: random numbers that generators of `from_generator` draw follow from it. None: from all
        draws before, as in Keras.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        name: str,
        *,
        made: FitIterators | None = None,
        reader: Reader = Reader.TRAINING,
        beside: BatchSource | None = None,
        first: Structure | None = None,
        parts: SplitDataset | None = None,
        seed: int | None = None,
    ) -> None:
        self.batch_spec = tf.nest.map_structure(structure.batched, dataset.element_spec)
        structure.check_sliceable(dataset.element_spec, name)
        leaves = [leaf for leaf in tf.nest.flatten(dataset.element_spec) if leaf is not None]
        self.has_one_size = all(leaf.shape[0] is not None for leaf in leaves if leaf.shape.rank)
        self.batches_per_pass = known_length(dataset)
        if self.batches_per_pass == 0:
            raise DataError(f"{name} is empty. Give at least one batch.")
        self.name = name
        self.advice = ADVICE
        self.dataset = dataset
        self.is_exclusive = dataset_parts.caches_in_files(dataset)
        self.first = first
        self.parts = parts
        self.prepare: PrepareRows | None = None
        if parts is not None and parts.taken:
            self.prepare = _RowMaps(parts, name)
        self._made = made
        self._reader = reader
        self._draws: GeneratorDraws | None = None
        self._stopped = False
        self._left: list[Iterator[Structure]] = []
        """The pass that is read, if it has to be read to its end before another one."""
        self._training = beside if isinstance(beside, DatasetBatches) else None

        self._iterators: NumberedIterators = (
            self._training._iterators
            if self._training is not None
            else NumberedIterators(lambda n: dataset, name, form=self._form(0))
        )
        if self._training is not None:
            self._take_turns(self._training)
        elif made is not None:
            self._iterators.is_read = made.is_read
            self._iterators.to_end = lambda index: made.to_end(made.reader_of(index))
        if seed is not None:
            is_trained = self._training is not None and self._training.dataset is dataset
            self._draws = (
                self._training._draws
                if self._training is not None and is_trained
                else GeneratorDraws(dataset, seed, TOLD.format(name=name))
            )

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """Opens a pass at its front. A dataset starts nowhere else, so `position` is 0."""
        form = self._form(number)
        if self._draws is not None:
            self._draws.begin(list(Reader).index(self._reader), number)
        to_end = self._made is None or self._made.to_end(self._reader)
        if not (to_end and iterators.keeps_order(self.dataset)):
            return self._opened(number, form)
        if self._left:
            iterators.read_to_end(self._left[0], self.name)
            iterators.drop_in_background(self._left)
        self._left = [self._opened(number, form)]
        return self._left[0]

    def _opened(self, number: int, form: Form) -> Iterator[Structure]:
        if self._made is None:
            return self._iterators.of_pass(number, form)
        index, keep = self._made.index_of(self._reader, number), -1
        if self._training is not None:
            keep = self._made.training_before(index)
            if self._training._stopped:
                index -= self._made.ends_with_training(number)
        return self._iterators.at(index, number, keep=keep, form=form)

    def _form(self, number: int) -> Form:
        """Returns what gives the dataset that is read in a pass."""

        def form(_: tf.data.Dataset) -> tf.data.Dataset:
            read = None if self.parts is None else self.parts.pipeline(number)
            return (self.dataset if read is None else read).prefetch(PREFETCH)

        return form

    def _take_turns(self, training: DatasetBatches) -> None:
        """Lets each iterator that is made only for its seed read the right one of two datasets."""
        made, forms = self._made, {Reader.TRAINING: training._form(0), self._reader: self._form(0)}
        if made is not None:
            self._iterators.form_of = lambda index: forms[made.reader_of(index)]

    def on_epoch_begin(self) -> None:
        """Does nothing: iterators are made when they are read."""

    def on_epoch_end(self) -> None:
        """Does nothing: iterators are made when they are read."""

    def on_stop(self) -> None:
        """Notes the stop: Keras then does not make the iterator that follows the end of a pass."""
        self._stopped = True

    def finish(self, epochs: int, *, stopped: bool) -> None:
        """Makes the iterators that are never read: the next `fit` may use the same dataset."""
        cache_files.publish()
        if self._draws is not None:
            self._draws.begin(AFTERWARDS, 0)
        if self._made is not None and self._training is None:
            self._iterators.make(self._made.made_by(self._reader, epochs, stopped=stopped))


class _RowMaps:
    """Runs the maps of a dataset on a worker's rows."""

    def __init__(self, parts: SplitDataset, name: str) -> None:
        self._prepare = Preparation(
            parts.element_map, parts.element_spec, name, "map(...)", parts.batch_maps
        )
        self._of_elements = parts.element_map is not None

    def __call__(self, number: int, step: int, ids: Ids, rows: Structure) -> Structure:
        """See `PrepareRows`."""
        first, within = 0, f"batch {step} of pass {number}"
        if self._of_elements:
            keys = np.stack([np.full_like(ids, number), ids], axis=1)
            first, rows = int(ids[0]) % BATCH_STRIDE if len(ids) else 0, (rows, tf.constant(keys))
        return self._prepare(first, rows, within)


def known_length(dataset: tf.data.Dataset) -> int | None:
    """Returns the number of batches of a dataset; None if it is unknown or infinite."""
    cardinality = int(dataset.cardinality())
    return cardinality if cardinality >= 0 else None


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
