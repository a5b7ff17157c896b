"""Examples from a source with random access; each worker reads and prepares only its own.

What happens to an example, in this order: its position in the epoch's order is that of this
worker's share of a step (`partition.py`), the order gives its index (`order.py`), the source gives
the example, `preprocess` runs on it in parallel threads, and it becomes part of a batch. Nothing
comes before the position, so that a worker starts anywhere at the same cost.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError, ElasticError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.batch_log import BatchLog
from hvd_elastic_keras.data.examples.form import Array, ExampleForm
from hvd_elastic_keras.data.examples.preparation import (
    Preprocess,
    arguments,
    explained,
    num_threads,
    plain_options,
    reason,
    traced,
)
from hvd_elastic_keras.data.examples.read_errors import read_error
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.order import WINDOW_BLOCKS, Order
from hvd_elastic_keras.data.plan.partition import EpochShare, Partition
from hvd_elastic_keras.data.sources.iterators import drop_in_background
from hvd_elastic_keras.data.sources.reader import PREFETCH
from hvd_elastic_keras.observe.notices import counted_places

log = logging.getLogger(__name__)
LONGEST_READ = 256
"""Examples that are asked for at a time; fewer if a worker's part of a step is smaller."""
OPEN_AHEAD = 2
"""Steps before the end of an epoch at which the next one's iterator is made: that takes as long."""
_opener = concurrent.futures.ThreadPoolExecutor(1, "elastic-open-ahead")
MOST_NAMED = 4
"""Examples that a message names."""
NUM_LOOKED_AT = 4
"""Examples whose common form is that of all, where the source does not say it."""


@runtime_checkable
class Source(Protocol):
    """Examples that can be read in any order, such as a tfds or Grain data source.

    A PyTorch map-style data set is one, too. It may have more, which is found by its name:

    - `__getitems__(indices) -> list`: several examples at a time, where that is faster.
    - `element_spec`: structure of `tf.TensorSpec`s of an example. Without it, some examples are
      looked at; dimensions in which they differ may have any size.
    - `block_size`: so many neighbours are read best together. Epochs then mix the examples of
      `window_blocks` (16 if there is no such attribute) blocks at a time, in place of all.
    - `read_threads`: threads in which it may be read at the same time; 1 if there is no such
      attribute.

    Example:

        class Squares:
            def __len__(self):
                return 1000

            def __getitem__(self, index):
                return np.float32(index), np.float32(index) ** 2
    """

    def __len__(self) -> int:
        """Number of examples."""

    def __getitem__(self, index: Any) -> Any:
        """The example at `index`, in [0, len): arrays, numbers or bytes, in tuples or dicts."""


@dataclasses.dataclass(frozen=True)
class _Ahead:
    """The iterator of an epoch and an `EpochShare` that is being made."""

    what: tuple[int, EpochShare]
    iterator: concurrent.futures.Future[Any]


class RandomAccessExamples:
    """A `Source`, read in the order of (seed, epoch).

    Args:
      source: the user's.
      preprocess: from an example to `(x, y)`, in TensorFlow's operations; None if examples are
        that already.
      name: of the data, for messages.

    Raises:
      DataError: the source is empty, or its examples or those of `preprocess` have no common form.
    """

    from_front = False
    log: BatchLog | None = None

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess | None,
        *,
        seed: int,
        shuffle: bool,
        name: str,
    ) -> None:
        self.num_examples = len(source)
        if self.num_examples == 0:
            raise DataError(f"The source of {name} is empty. Give at least one example.")
        self._name = name
        self._seed = seed
        self._shuffle = shuffle
        self._reader = _Reader(source, name)
        self._preprocess = traced(preprocess, self._reader.form.spec) if preprocess else None
        self._ahead: _Ahead | None = None
        some = EpochShare(first_step=0, every=1, global_batch_size=1, low=0, per_step=1, total=1)
        _, self.batch_spec = self._dataset(0, some).element_spec
        structure.check_sliceable(self.batch_spec, f"The source of {name}", of_examples=True)

    def order(self, epoch: int) -> Order:
        return Order(
            self.num_examples,
            self._seed,
            epoch,
            shuffle=self._shuffle,
            block_size=self._reader.block_size,
            window_blocks=self._reader.window_blocks,
        )

    def batches(
        self, epoch: int, partition: Partition, share: Share, first_step: int, every: int = 1
    ) -> Iterator[tuple[tf.Tensor, Structure]]:
        self._reader.forget_failures()
        epoch_share = partition.epoch_share(share, first_step, every)
        iterator = [self._opened(epoch, epoch_share)] if epoch_share.total else []
        steps = range(first_step, partition.steps_per_epoch, every)
        try:
            for step in steps:
                if every == 1 and step == max(first_step, steps[-1] - OPEN_AHEAD):
                    self._open_ahead(epoch + 1, partition.epoch_share(share, 0))
                part = partition.step_share(step, share.first, share.last)
                if part.start == part.stop:
                    yield tf.zeros([0], tf.int64), structure.empty(self.batch_spec)
                else:
                    yield self._next(iterator, epoch, range(part.start, part.stop))
        finally:
            # What is being read or prepared just now would be waited for.
            drop_in_background(iterator)

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """Any position can be read at once."""

    def finish(self, epochs: int) -> None:
        """Nothing is left of a training."""

    def _opened(self, epoch: int, epoch_share: EpochShare) -> Any:
        """An iterator over an `EpochShare`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.what == (epoch, epoch_share):
            return ahead.iterator.result()
        return iter(self._dataset(epoch, epoch_share))

    def _open_ahead(self, epoch: int, epoch_share: EpochShare) -> None:
        """Makes the iterator that is likely to be the next one. It reads nothing yet."""
        if epoch_share.total:
            iterator = _opener.submit(lambda: iter(self._dataset(epoch, epoch_share)))
            self._ahead = _Ahead((epoch, epoch_share), iterator)

    def _dataset(self, epoch: int, epoch_share: EpochShare) -> tf.data.Dataset:
        """The batches of an `EpochShare` of positions, with the indices of their examples."""
        order, reader, size = self.order(epoch), self._reader, max(1, epoch_share.per_step)
        one_by_one = not reader.form.stackable
        read = 1 if one_by_one else size if self._preprocess is None else min(size, LONGEST_READ)

        def load(start: tf.Tensor) -> tuple[tf.Tensor, Structure]:
            numbers = tf.range(start, tf.minimum(start + read, epoch_share.total))
            indices = order.indices(epoch_share.positions(numbers))
            if one_by_one:
                return indices[0], reader.one(indices[0])
            return indices, reader.stacked(indices)

        dataset = tf.data.Dataset.range(0, epoch_share.total, read)
        load = tf.autograph.experimental.do_not_convert(load)
        dataset = dataset.map(load, num_parallel_calls=reader.threads, deterministic=True)
        dataset = dataset.prefetch(PREFETCH).with_options(plain_options())
        if self._preprocess is not None:
            dataset = dataset if one_by_one else dataset.unbatch()
            dataset = dataset.map(
                self._prepared, num_parallel_calls=num_threads(), deterministic=True
            )
        elif not one_by_one:
            return dataset
        return dataset.batch(size).prefetch(PREFETCH)

    def _prepared(self, index: tf.Tensor, example: Structure) -> tuple[tf.Tensor, Structure]:
        return index, example if self._preprocess is None else self._preprocess(*arguments(example))

    def _next(
        self, iterator: list[Any], epoch: int, positions: range
    ) -> tuple[tf.Tensor, Structure]:
        try:
            batch: tuple[tf.Tensor, Structure] = next(iterator[0])
            return batch
        except tf.errors.CancelledError:
            raise
        except tf.errors.OpError as error:
            self._reader.raise_failure()
            numbers = tf.range(positions.start, positions.stop, dtype=tf.int64)
            indices = self.order(epoch).indices(numbers).numpy().tolist()
            examples = ((index, self._reader.example(index)) for index in indices)
            preprocess = self._preprocess or (lambda *example: example)
            raise explained(error, preprocess, examples, self._name) from error


class _Reader:
    """Reads examples for a `tf.data` pipeline, and checks them.

    An exception of the source ends the pipeline with an error of TensorFlow's; `raise_failure`
    says what it was.
    """

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._read_many: Callable[[Sequence[int]], Sequence[Any]] = getattr(
            source, "__getitems__", lambda indices: [source[i] for i in indices]
        )
        self.block_size = int(getattr(source, "block_size", None) or 0)
        self.window_blocks = int(getattr(source, "window_blocks", None) or WINDOW_BLOCKS)
        self.threads = int(getattr(source, "read_threads", None) or 1)
        # An iterator that is dropped may still be reading when its successor begins.
        self._reading = threading.BoundedSemaphore(self.threads)
        self._name = name
        self._failures: list[tuple[Exception, list[int]]] = []
        spec = getattr(source, "element_spec", None)
        self.form = ExampleForm(spec, name) if spec is not None else self._look()

    def _look(self) -> ExampleForm:
        last = len(self._source) - 1
        indices = {last * i // (NUM_LOOKED_AT - 1) for i in range(NUM_LOOKED_AT)}
        return ExampleForm.of([self._raw(i) for i in sorted(indices)], self._name)

    def _raw(self, index: int) -> Any:
        try:
            return self._source[index]
        except Exception as error:  # a source may raise anything
            raise self._unreadable(error, index) from error

    def example(self, index: int) -> Structure:
        """One example, as tensors.

        Raises:
          DataError: the source cannot give it, or it has another form.
        """
        try:
            with self._reading:
                arrays = self.form.arrays(self._source[index], index)
        except Exception as error:  # a source may raise anything
            raise self._unreadable(error, index) from error
        return self.form.pack([tf.constant(array) for array in arrays])

    def stacked(self, indices: tf.Tensor) -> Structure:
        """Examples of the same shapes, stacked: tensors of shape [n, …]."""
        return self._call(self._load_columns, indices, [None])

    def one(self, index: tf.Tensor) -> Structure:
        """One example."""
        return self._call(self._load_arrays, index, [])

    def forget_failures(self) -> None:
        """Called before a new iterator: what an old one has read ahead does not matter."""
        self._failures.clear()

    def raise_failure(self) -> None:
        """Raises `DataError` if a read has failed before, with the example that it failed on."""
        if not self._failures:
            return
        failure, indices = self._failures[0]
        self._failures.clear()
        if not isinstance(failure, ElasticError):
            for index in indices:
                self.example(index)
        # Read alone, each of them may be well.
        raise self._unreadable(failure, *indices) from failure

    def _unreadable(self, error: Exception, *indices: int) -> ElasticError:
        if isinstance(error, ElasticError):
            return error
        which = f"Example {indices[0]}"
        if len(indices) > 1:
            which = f"One of the examples {counted_places(map(str, indices), MOST_NAMED)}"
        text = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
        return read_error(
            f"{which} of {self._name} cannot be read: {type(error).__name__}: {text}. "
            "Repair it, or leave it out of the source.",
            error,
        )

    def _call(self, load: Callable[[Any], list[Array]], index: tf.Tensor, dims: list[Any]) -> Any:
        specs = self.form.flat_spec
        # Stateless as to the graph: it gives the same for the same index.
        tensors = tf.numpy_function(load, [index], [s.dtype for s in specs], stateful=False)
        for tensor, spec in zip(tensors, specs, strict=True):
            tensor.set_shape([*dims, *spec.shape])
        return self.form.pack(tensors)

    def _load_columns(self, indices: Array) -> list[Array]:
        numbers: list[int] = indices.tolist()
        try:
            with self._reading:
                examples = self._read_many(numbers)
            return self.form.columns(examples, numbers)
        except Exception as error:
            self._note(error, numbers)
            raise

    def _load_arrays(self, index: Array) -> list[Array]:
        number = int(index)
        try:
            with self._reading:
                example = self._source[number]
            return self.form.arrays(example, number)
        except Exception as error:
            self._note(error, [number])
            raise

    def _note(self, error: Exception, indices: list[int]) -> None:
        log.error("reading examples %s of %s failed: %s", indices[:8], self._name, error)
        self._failures.append((error, indices))
