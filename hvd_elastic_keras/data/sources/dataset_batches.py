"""The batches of a `tf.data.Dataset` as `fit` reads them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from concurrent import futures

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.preparation import Preparation
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.example_ids import BATCH_STRIDE, Ids
from hvd_elastic_keras.data.plan.fit_passes import FitIterators, Reader
from hvd_elastic_keras.data.sources import cache_files, iterators
from hvd_elastic_keras.data.sources.global_draws import GeneratorDraws
from hvd_elastic_keras.data.sources.iterators import Form, NumberedIterators
from hvd_elastic_keras.data.sources.reader import PREFETCH, BatchSource, PrepareRows
from hvd_elastic_keras.data.sources.split_dataset import SplitDataset
from hvd_elastic_keras.keras_internals import dataset_parts

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
        self._ahead: int | None = None
        """Batches that plain `fit` reads ahead, if the orders of later passes depend on it."""
        if made is not None and iterators.repeats_shuffle(dataset):
            _, self._ahead = iterators.without_prefetch(dataset)
        self._left: list[Counted] = []
        """The pass that is read, if the orders of later ones depend on how far it is read."""
        self._left_number = 0
        self._training = beside if isinstance(beside, DatasetBatches) else None

        self._iterators: NumberedIterators = (
            self._training._iterators
            if self._training is not None
            else NumberedIterators(lambda n: dataset, name, form=self._form(0))
        )
        if self._training is not None:
            self._take_turns(self._training)
        elif made is not None:
            self._iterators.batches_read = lambda index: self._batches_read(made, index)
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
        if number != self._left_number:
            self._read_what_is_left(self._made)
        training = self._training
        if training is not None and iterators.share_kept_order(self.dataset, training.dataset):
            training._complete_cache()
        opened = self._opened(number, form)
        if self._ahead is not None:
            self._left = [opened := ReadAhead(opened, self._ahead)]
        elif iterators.keeps_order(self.dataset) and self._left_of(number, self._made) is None:
            self._left = [opened := Counted(opened)]
        self._left_number = number
        return opened

    def _complete_cache(self) -> None:
        """Reads on if only the end of the opened pass is left, where a `cache` is complete."""
        if self._left and self._left[0].taken == self.batches_per_pass:
            self._read_what_is_left(self._made)

    def _read_what_is_left(self, made: FitIterators | None, *, stopped: bool = False) -> None:
        """Reads the opened pass as far as plain `fit` does. Perhaps only its first batch is read.

        Args:
          made: the iterators of the `fit`, and what is read of them.
          stopped: whether a callback has ended the pass. A worker that has not read so far does not
            know where.
        """
        if self._left:
            count = 0 if stopped else self._left_of(self._left_number, made)
            iterators.read_up_to(self._left[0], count, self.name)
            if isinstance(self._left[0], ReadAhead):
                self._left[0].wait()
            iterators.drop_in_background(self._left)

    def _left_of(self, number: int, made: FitIterators | None) -> int | None:
        """Returns how many batches more plain `fit` reads of the opened pass; None if all."""
        count = None if made is None else made.batches_read(made.index_of(self._reader, number))
        read = self._left[0].taken if self._left and isinstance(self._left[0], ReadAhead) else 0
        return count and max(0, count - read)

    def _batches_read(self, made: FitIterators, index: int) -> int | None:
        """Returns how many batches plain `fit` reads from an iterator; None if all."""
        count = made.batches_read(index)
        return count and count + (self._ahead or 0)

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
            read = self.dataset if read is None else read
            if self._ahead is None:
                return read.prefetch(PREFETCH)
            return iterators.without_prefetch(read)[0]

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
        if self._made is None or self._training is not None:
            return
        made = self._made
        if self._reader is Reader.TRAINING:
            made = dataclasses.replace(made, epochs=epochs)
        self._read_what_is_left(made, stopped=stopped)
        self._iterators.batches_read = lambda index: self._batches_read(made, index)
        self._iterators.make(self._made.made_by(self._reader, epochs, stopped=stopped))


class Counted:
    """Counts the elements that an iterator gives.

    Attributes:
      taken: the number of elements so far.
    """

    def __init__(self, batches: Iterator[Structure]) -> None:
        self._batches = batches
        self.taken = 0

    def __iter__(self) -> Iterator[Structure]:
        return self

    def __next__(self) -> Structure:
        batch = self._next()
        self.taken += 1
        return batch

    def _next(self) -> Structure:
        return next(self._batches)


class ReadAhead(Counted):
    """Reads some elements of an iterator ahead in a thread, as `prefetch` does.

    A `repeat` above a `shuffle` takes a seed for its next round when it has read the last one to
    its end. How many elements a `prefetch` has read when the training ends depends on the speed of
    its thread. Here, the number is always the same.

    Args:
      batches: the iterator.
      ahead: number of batches that are read ahead.
    """

    def __init__(self, batches: Iterator[Structure], ahead: int) -> None:
        super().__init__(batches)
        self._ahead = ahead
        self._waiting: collections.deque[futures.Future[Structure]] = collections.deque()
        self._thread = futures.ThreadPoolExecutor(1, "elastic-read-ahead")

    def _next(self) -> Structure:
        while len(self._waiting) <= self._ahead:
            self._waiting.append(self._thread.submit(next, self._batches, None))
        batch = self._waiting.popleft().result()
        if batch is None:
            raise StopIteration
        return batch

    def wait(self) -> None:
        """Waits until the thread has read everything that it reads ahead."""
        futures.wait(self._waiting)


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
