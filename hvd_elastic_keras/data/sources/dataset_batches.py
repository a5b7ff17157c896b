"""A `tf.data.Dataset` of batches, as `fit` reads it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.preparation import Preparation, reason
from hvd_elastic_keras.data.examples.read_errors import read_error
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.example_ids import BATCH_STRIDE, Ids
from hvd_elastic_keras.data.plan.fit_iterators import FitIterators, Reader
from hvd_elastic_keras.data.sources.iterators import NumberedIterators
from hvd_elastic_keras.data.sources.reader import PREFETCH, BatchSource, PrepareRows
from hvd_elastic_keras.data.sources.split_dataset import SplitDataset

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
      beside: the batches of the training, if the evaluation reads the same dataset.
      first: the first batch, if it must not be read here because an iterator would take seeds.
      parts: the dataset without its maps, if each worker runs the maps on its own rows.
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
    ) -> None:
        self.batch_spec = tf.nest.map_structure(structure.batched, dataset.element_spec)
        structure.check_sliceable(dataset.element_spec, name)
        self.batches_per_pass = known_length(dataset)
        if self.batches_per_pass == 0:
            raise DataError(f"{name} is empty. Give at least one batch.")
        self.name = name
        self.advice = ADVICE
        self.first = first
        self.parts = parts
        self.prepare: PrepareRows | None = None
        if parts is not None and parts.taken:
            self.prepare = _RowMaps(parts, name)
        self._made = made
        self._reader = reader
        self._stopped = False
        self._training = beside if isinstance(beside, DatasetBatches) else None

        def form(whole: tf.data.Dataset) -> tf.data.Dataset:
            return (whole if parts is None else parts.raw).prefetch(PREFETCH)

        self._iterators: NumberedIterators = (
            self._training._iterators
            if self._training is not None
            else NumberedIterators(lambda n: dataset, name, form=form)
        )

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """Opens a pass at its front. A dataset starts nowhere else, so `position` is 0."""
        if self._made is None:
            return self._iterators.of_pass(number)
        index, keep = self._made.index_of(self._reader, number), -1
        if self._training is not None:
            keep = self._made.training_before(index)
            if self._training._stopped:
                index -= self._made.ends_with_training(number)
        return self._iterators.at(index, number, keep=keep)

    def on_epoch_begin(self) -> None:
        """Does nothing: iterators are made when they are read."""

    def on_epoch_end(self) -> None:
        """Does nothing: iterators are made when they are read."""

    def on_stop(self) -> None:
        """Notes the stop: Keras then does not make the iterator that follows the end of a pass."""
        self._stopped = True

    def finish(self, epochs: int, *, stopped: bool) -> None:
        """Makes the iterators that are never read: the next `fit` may use the same dataset."""
        if self._made is not None and self._training is None:
            self._iterators.make(self._made.made_by(self._reader, epochs, stopped=stopped))


class _RowMaps:
    """Runs the maps of a dataset on a worker's rows."""

    def __init__(self, parts: SplitDataset, name: str) -> None:
        self._of_elements = parts.element_map and Preparation(
            parts.element_map, parts.element_spec, name, "map(...)"
        )
        self._of_batches = parts.batch_maps
        self._name = name

    def __call__(self, number: int, step: int, ids: Ids, rows: Structure) -> Structure:
        """See `PrepareRows`."""
        keys = np.stack([np.full_like(ids, number), ids], axis=1)
        first = int(ids[0]) % BATCH_STRIDE if len(ids) else 0
        within = f"batch {step} of pass {number}"
        if self._of_elements:
            rows = self._of_elements(first, (rows, tf.constant(keys, tf.int64)), within)
        try:
            for call in self._of_batches:
                rows = call(rows)
        except tf.errors.OpError as error:
            text = f"map(...) fails on {within} of {self._name}: {reason(error)}"
            raise read_error(text, error) from error
        return rows


def known_length(dataset: tf.data.Dataset) -> int | None:
    """Returns the number of batches of a dataset; None if it is unknown or infinite."""
    cardinality = int(dataset.cardinality())
    return cardinality if cardinality >= 0 else None
