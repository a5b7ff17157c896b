"""Iterators of a `tf.data.Dataset` whose order in each pass is the same in every process.

A dataset that is shuffled anew in each pass takes a new seed for each iterator. An epoch takes a
seed, but so does counting the dataset, or looking at its first example. Here, pass n is therefore
defined as the n-th iterator of the dataset. A process that joins later, or continues from a
checkpoint, has not read some passes. It makes their iterators without reading them.

`deleted_in_background` deletes iterators in a user's own loop where nobody waits for it. When a
round ends inside `for batch in dataset`, the loop's iterator is deleted before the worker can enter
the next round. The iterator's autotune thread may miss TensorFlow's request to end. TensorFlow then
waits until the thread looks up by itself, at intervals that double up to a minute. During these
seconds, all workers stand still.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError, ElasticError
from hvd_elastic_keras.data.sources.random_ops import check_random_functions
from hvd_elastic_keras.keras_internals import dataset_parts
from hvd_elastic_keras.keras_internals.dataset_parts import parts_of
from hvd_elastic_keras.observe.notices import counter

DatasetFactory = Callable[[int], tf.data.Dataset]
"""Returns the dataset of a pass, in the same order in every process."""
Form = Callable[[tf.data.Dataset], tf.data.Dataset]
"""Turns a dataset into the dataset that is read, for example into batches."""
COUNTED_AT_ONCE = 256
"""Examples counted between two updates of the progress bar."""


class NumberedIterators:
    """The iterators of successive passes.

    Args:
      dataset_of: returns the dataset of a pass. Datasets that are the same object, or share a
        `shuffle(...)`, share its seeds.
      name: name of the data, for messages.
      before: number of iterators that come before the iterator of pass 0.
      form: turns each dataset into the dataset that is read.

    Attributes:
      form_of: returns the form of an iterator that is made only for the seed that it takes.
      batches_read: returns how many batches other workers have read from an iterator; None: all. A
        `shuffle` above another one takes the seed of that one only when it is read, and a `repeat`
        above a `shuffle` takes the next seed when it has read the shuffled elements to their end.
    """

    def __init__(
        self,
        dataset_of: DatasetFactory,
        name: str,
        before: int = 0,
        form: Form = lambda dataset: dataset,
    ) -> None:
        self._dataset_of = dataset_of
        self._name = name
        self._before = before
        self._form = form
        self.form_of: Callable[[int], Form] = lambda index: form
        self.batches_read: Callable[[int], int | None] = lambda index: None
        self._first = dataset_of(0)
        self._seeds = {id(part) for part in reshuffles(self._first)}
        self._made = 0
        self._is_kept = False
        """Whether a pass has been read whose order a `cache` keeps."""
        self._kept: dict[int, Iterator[Any]] = {}
        """Iterators made before they are needed, by number. Only the newest one is kept."""

    def first(self, form: Form) -> Iterator[Any]:
        """Returns the iterator that comes before the iterator of pass 0."""
        self._made += 1
        return iter(form(self._first))

    def of_pass(self, number: int, form: Form | None = None) -> Iterator[Any]:
        """Returns the iterator of a pass, if each pass has one iterator."""
        return self.at(self._before + number, number, form=form)

    def at(
        self, index: int, number: int, *, keep: int = -1, form: Form | None = None
    ) -> Iterator[Any]:
        """Returns iterator number `index`, for pass `number`.

        Args:
          keep: number of an earlier iterator that will be asked for later.
          form: replaces the form that all iterators have.

        Raises:
          ElasticError: the pass is over in this process, and its seeds are gone.
        """
        dataset = self._dataset_of(number)
        if self._counts(dataset):
            if index in self._kept:
                return self._kept.pop(index)
            if self._made > index and self._seeds:
                # Not a DataError, which would end the job: a new process can do it.
                raise ElasticError(
                    f"Pass {number} of {self._name} has to be read again after later ones, but "
                    "shuffle(...) has another order for each iterator of this process. It has to "
                    "start again."
                )
            self.make(index, keep=keep)
            self._made += 1
            self._is_kept = True
        return iter((form or self._form)(dataset))

    def make_passes(self, count: int) -> None:
        """Makes iterators that are not read, until `count` passes have one."""
        if count and self._counts(self._dataset_of(count - 1)):
            self.make(self._before + count)

    def make(self, count: int, *, keep: int = -1) -> None:
        """Makes iterators that are not read until there are `count`: each takes its seed."""
        if not self._seeds:
            self._made = max(self._made, count)
        while self._made < count:
            dataset = self._dataset_of(max(0, self._made - self._before))
            iterator = [iter(self.form_of(self._made)(dataset))]
            iterator = [self._begun(iterator.pop(), dataset)]
            if self._made == keep:
                self._kept = {keep: iterator.pop()}
            drop_in_background(iterator)
            self._made += 1

    def _begun(self, iterator: Iterator[Any], dataset: tf.data.Dataset) -> Iterator[Any]:
        """Reads as much of an iterator as the seeds depend on that later ones take."""
        count = self.batches_read(self._made)
        if keeps_order(dataset) and not self._is_kept and count is None:
            self._is_kept = True
            read_up_to(iterator, None, self._name)
        elif repeats_shuffle(dataset):
            read_up_to(iterator, count, self._name)
        elif _takes_seeds_late(dataset) and count != 0:
            return itertools.chain(list(itertools.islice(iterator, 1)), iterator)
        return iterator

    def _counts(self, dataset: tf.data.Dataset) -> bool:
        shared = any(id(part) in self._seeds for part in reshuffles(dataset))
        return dataset is self._first or shared


def reshuffles(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the parts of a dataset that have another order for each iterator."""
    return [part for part in parts_of(dataset) if dataset_parts.reshuffles(part)]


def _takes_seeds_late(dataset: tf.data.Dataset) -> bool:
    """Whether an iterator takes some of its seeds only when its first element is read."""
    shuffles = filter(dataset_parts.is_shuffle, parts_of(dataset))
    return any(reshuffles(below) for part in shuffles for below in part._inputs())


def keeps_order(dataset: tf.data.Dataset) -> bool:
    """Whether a `cache` keeps the order of the first pass, whose seeds no later one has."""
    return bool(_kept_orders(dataset))


def share_kept_order(one: tf.data.Dataset, other: tf.data.Dataset) -> bool:
    """Whether the same `cache` keeps the order of the first pass for both datasets."""
    return not _kept_orders(one).isdisjoint(_kept_orders(other))


def _kept_orders(dataset: tf.data.Dataset) -> set[int]:
    """Returns the ids of the `cache` parts that keep the order of a shuffle."""
    caches = filter(dataset_parts.is_cache, parts_of(dataset))
    return _ids(part for part in caches if any(map(reshuffles, part._inputs())))


def read_up_to(batches: Iterator[Any], count: int | None, name: str) -> None:
    """Reads `count` batches, or all if it is None, of a pass on which the order of later ones
    depends.
    """
    with counter(f"reading a pass over {name} on which later ones depend", "batches") as bar:
        for _ in itertools.islice(batches, count):
            bar.update()


def repeats_shuffle(dataset: tf.data.Dataset) -> bool:
    """Returns whether one iterator takes further seeds while it is read."""
    return any(dataset_parts.is_repeat(part) and reshuffles(part) for part in parts_of(dataset))


def without_prefetch(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, int]:
    """Returns a dataset that reads nothing ahead at its end, and how much the given one does.

    TensorFlow adds a `prefetch` where there is none. It begins to read one element ahead, as
    `AUTOTUNE` does, and reads more only if the element is missing when it is asked for.
    """
    options, found, ahead = dataset.options(), dataset, 0
    while dataset_parts.passes_elements_on(found):
        ahead += dataset_parts.prefetched(found)
        found = dataset_parts.input_of(found)
    if found is dataset and options.experimental_optimization.inject_prefetch is not False:
        ahead = 1
    bare = tf.data.Options()
    bare.experimental_optimization.inject_prefetch = False
    return found.with_options(options.merge(bare)), ahead


def check_order(
    dataset: tf.data.Dataset,
    name: str,
    changed: Sequence[tf.data.Dataset] = (),
    *,
    is_in_order: bool = False,
) -> None:
    """Raises `DataError` if another worker would read a dataset in another order.

    It looks for a `shuffle` without a seed, for parallel steps that need not keep the order, and
    for functions that draw random numbers which another worker cannot draw again.

    Args:
      changed: parts that were taken out or draw other numbers: see `split_dataset.py`.
      is_in_order: whether the pipeline that is read ignores `deterministic=False`.
    """
    if dataset.options().deterministic is False and not is_in_order:
        raise DataError(
            f"{name} is a tf.data.Dataset with options().deterministic = False, so that its order "
            "differs from worker to worker. Leave that option out."
        )
    done = {id(part) for part in changed}
    for part in parts_of(dataset):
        if id(part) in done:
            continue
        if dataset_parts.is_unseeded_shuffle(part):
            raise DataError(
                f"{name} is a tf.data.Dataset with an unseeded shuffle(...), so that its order "
                "differs from worker to worker, and a worker that joins later cannot continue. "
                "Give it a seed: shuffle(n, seed=1), or call keras.utils.set_random_seed(1) before "
                "the dataset is made. It is still shuffled anew in every epoch."
            )
        if dataset_parts.need_not_keep_order(part) and not is_in_order:
            raise DataError(
                f"{name} is a tf.data.Dataset with {type(part).__name__.strip('_')} that was given "
                "deterministic=False, so that its order differs from worker to worker. Leave that "
                "argument out."
            )
        check_random_functions(part, name)


def check_apart(train: Any, evaluation: Any) -> None:
    """Raises `DataError` if two datasets take the seeds of one `shuffle` in turn."""
    if not all(isinstance(data, tf.data.Dataset) for data in (train, evaluation)):
        return
    if share_shuffle(train, evaluation):
        raise DataError(
            "The training and the validation data are made of one dataset with a shuffle(...) that "
            "has another order each time either is read: with take() and skip(), examples move "
            "from one to the other between epochs. Use shuffle(..., "
            "reshuffle_each_iteration=False) there, and shuffle the training data again."
        )


def share_shuffle(train: tf.data.Dataset, evaluation: tf.data.Dataset) -> bool:
    """Returns whether two datasets take the seeds of one `shuffle` in turn."""
    return not _ids(reshuffles(train)).isdisjoint(_ids(reshuffles(evaluation)))


def share_changing_order(train: tf.data.Dataset, evaluation: tf.data.Dataset) -> bool:
    """Returns whether two datasets share a `shuffle` whose order no `cache` of both keeps."""
    kept = _kept_orders(train) & _kept_orders(evaluation)
    orders = [
        _ids(part for part in parts_of(d, without=kept) if dataset_parts.reshuffles(part))
        for d in (train, evaluation)
    ]
    return not orders[0].isdisjoint(orders[1])


def _ids(parts: Iterable[tf.data.Dataset]) -> set[int]:
    return {id(part) for part in parts}


def counted(examples: Iterator[Any], name: str) -> int:
    """Returns the number of examples. Reads to the end and shows its progress."""
    count = 0
    what = f"counting the examples of {name} (assert_cardinality(n) in the dataset would save it)"
    with counter(what, "examples") as bar:
        for some in examples:
            count += len(some)
            bar.update(len(some))
    return count


def as_numbers(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset with the same number of elements, for counting."""
    return dataset.map(lambda *_: np.int8(0)).batch(COUNTED_AT_ONCE)


def drop_in_background(iterator: list[Any]) -> None:
    """Deletes an iterator without waiting for its threads, which may take seconds.

    Args:
      iterator: a list with the only reference to the iterator. The thread that drops the last
        reference has to wait.
    """
    threading.Thread(target=iterator.clear, name="elastic-drop-iterator", daemon=True).start()


@contextlib.contextmanager
def deleted_in_background() -> Iterator[None]:
    """Marks a block in which dropping an iterator does not make the dropping thread wait."""
    make = tf.data.Dataset.__iter__

    @functools.wraps(make)
    def make_iterator(dataset: tf.data.Dataset) -> Any:
        iterator = make(dataset)
        if tf.executing_eagerly():
            # This holds the attributes, not the iterator: the iterator must die when the user's
            # code drops it.
            weakref.finalize(iterator, _take_apart, vars(iterator)).atexit = False
        return iterator

    tf.data.Dataset.__iter__ = make_iterator
    try:
        yield
    finally:
        tf.data.Dataset.__iter__ = make


def _take_apart(attributes: dict[str, Any]) -> None:
    """Moves everything that a dying iterator holds to a thread that deletes it."""
    held = [dict(attributes)]
    attributes.clear()
    drop_in_background(held)
