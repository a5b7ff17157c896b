"""The batches of a `tf.data.Dataset` as `fit` reads them."""

from __future__ import annotations

from collections.abc import Iterator

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
