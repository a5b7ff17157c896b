"""Reads examples from a source with random access. Each worker reads and prepares only its own.

An example goes through these stages. This worker's share of a step gives its position in the
epoch's order (`partition.py`). The order gives its index (`order.py`). The source gives the
example. `preprocess` runs on it in parallel threads. It becomes part of a batch. Since everything
starts with the position, a worker starts anywhere at the same cost.
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
    read_error,
    reason,
    traced,
)
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.order import WINDOW_BLOCKS, Order
from hvd_elastic_keras.data.plan.partition import EpochShare, Partition
from hvd_elastic_keras.data.sources.iterators import drop_in_background
from hvd_elastic_keras.data.sources.reader import PREFETCH
from hvd_elastic_keras.observe.notices import counted_places

log = logging.getLogger(__name__)
LONGEST_READ = 256
"""Most examples that are asked for at a time; fewer if a worker's part of a step is smaller."""
OPEN_AHEAD = 2
"""Making the next epoch's iterator starts this number of steps before the end: it takes as long."""
_opener = concurrent.futures.ThreadPoolExecutor(1, "elastic-open-ahead")
MOST_NAMED = 4
"""Most examples that a message names."""
NUM_LOOKED_AT = 4
"""Examples that determine the form of all examples, if the source does not say it."""


@runtime_checkable
class Source(Protocol):
    """Examples that can be read in any order, such as a tfds or Grain data source.

    A PyTorch map-style data set is a source, too. A source may also have these optional members:

    - `__getitems__(indices) -> list`: returns several examples at a time, if that is faster.
    - `element_spec`: structure of `tf.TensorSpec`s of an example. Without it, some examples are
      read to find it; dimensions in which they differ may have any size.
    - `block_size`: number of neighbours that are best read together. An epoch then mixes the
      examples of `window_blocks` blocks at a time (16 if there is no such attribute), instead of
      all examples.
    - `read_threads`: threads that may read the source at the same time; 1 if there is no such
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
        """Returns the example at `index`, in [0, len).

        An example is arrays, numbers or bytes, in tuples or dicts.
        """


@dataclasses.dataclass(frozen=True)
class _Ahead:
    """The iterator of an epoch and an `EpochShare` that is being made."""

    what: tuple[int, EpochShare]
    iterator: concurrent.futures.Future[Any]


class RandomAccessExamples:
    """A `Source`, read in the order of (seed, epoch).

    Args:
      source: the user's source.
      preprocess: turns an example into `(x, y)`, in TensorFlow operations; None if examples already
        have this form.
      name: name of the data, for messages.

    Raises:
      DataError: the source is empty, or its examples, or the results of `preprocess`, have no
        common form.
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
            # Deleting it here would wait for the examples that are being read or prepared.
            drop_in_background(iterator)

    def read_up_to(
        self, epoch: int, partition: Partition, step: int, goes_on: Callable[[], bool]
    ) -> None:
        """Does nothing: any position can be read at once."""

    def finish(self, epochs: int) -> None:
        """Does nothing: a training leaves no trace in this source."""

    def _opened(self, epoch: int, epoch_share: EpochShare) -> Any:
        """Returns an iterator over an `EpochShare`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.what == (epoch, epoch_share):
            return ahead.iterator.result()
        return iter(self._dataset(epoch, epoch_share))

    def _open_ahead(self, epoch: int, epoch_share: EpochShare) -> None:
        """Makes the iterator that will probably be needed next. It reads nothing yet."""
        if epoch_share.total:
            iterator = _opener.submit(lambda: iter(self._dataset(epoch, epoch_share)))
            self._ahead = _Ahead((epoch, epoch_share), iterator)

    def _dataset(self, epoch: int, epoch_share: EpochShare) -> tf.data.Dataset:
        """Returns the batches of an `EpochShare`, with the indices of their examples."""
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

    An exception in the source ends the pipeline with a TensorFlow error. `raise_failure` then
    raises an error that names the exception.
    """

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._read_many: Callable[[Sequence[int]], Sequence[Any]] = getattr(
            source, "__getitems__", lambda indices: [source[i] for i in indices]
        )
        self.block_size = int(getattr(source, "block_size", None) or 0)
        self.window_blocks = int(getattr(source, "window_blocks", None) or WINDOW_BLOCKS)
        self.threads = int(getattr(source, "read_threads", None) or 1)
        # A dropped iterator may still be reading when the next one begins.
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
        """Returns one example, as tensors.

        Raises:
          DataError: the source cannot return the example, or it has another form.
        """
        try:
            with self._reading:
                arrays = self.form.arrays(self._source[index], index)
        except Exception as error:  # a source may raise anything
            raise self._unreadable(error, index) from error
        return self.form.pack([tf.constant(array) for array in arrays])

    def stacked(self, indices: tf.Tensor) -> Structure:
        """Returns examples of the same shapes, stacked: tensors of shape [n, …]."""
        return self._call(self._load_columns, indices, [None])

    def one(self, index: tf.Tensor) -> Structure:
        """Returns one example."""
        return self._call(self._load_arrays, index, [])

    def forget_failures(self) -> None:
        """Forgets failures. Called before a new iterator: failures of an old one do not matter."""
        self._failures.clear()

    def raise_failure(self) -> None:
        """Raises `DataError` if a read has failed before, and names the failed example."""
        if not self._failures:
            return
        failure, indices = self._failures[0]
        self._failures.clear()
        if not isinstance(failure, ElasticError):
            for index in indices:
                self.example(index)
        # Each example may be readable by itself.
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
        # It counts as stateless in the graph: the same index gives the same example.
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
