"""Runs the user's `preprocess`: traces it once, runs it in threads, and explains its errors.

`read_error` tells final errors of reading from errors that may pass. A wrong example stays wrong,
so the job ends with an error that says what is wrong. Storage that does not answer may answer the
next worker. Then only this worker ends, and is replaced as after any failure. If this does not
help, the job ends after several failures.
"""

from __future__ import annotations

import collections
import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, TypeVar

import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError, ElasticError, InputUnavailableError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Layout, Structure
from hvd_elastic_keras.keras_internals.dataset_remaking import mapped_in_one_thread

Preprocess = Callable[..., Structure]
Part = TypeVar("Part")
Result = TypeVar("Result")
AHEAD = 2
"""Batches of a worker that are prepared while it computes a step."""
LEAST_S = 0.003
"""A thread that helps gets work for at least this time: it costs a third of it to hand it out."""

FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
MAY_PASS = (
    OSError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
"""TensorFlow turns most Python exceptions into an `UnknownError`."""


def traced(preprocess: Preprocess, spec: Structure) -> Preprocess:
    """Returns `preprocess` as one function that no epoch or round has to trace again.

    The function takes arguments in the way that `tf.data` passes them.

    Args:
      spec: spec of an example.
    """
    called = _with_arguments(preprocess, spec)

    def call(*given: Any) -> Structure:
        prepared = called(*given)
        return tuple(prepared) if isinstance(prepared, list) else prepared

    function = tf.function(call).get_concrete_function(*arguments(spec))
    return lambda *given: function(*tf.nest.flatten(given))


def _with_arguments(call: Callable[[Structure], Structure], spec: Structure) -> Preprocess:
    """Returns a function that takes the arguments that `tf.data` passes."""
    several = type(spec) is tuple
    return lambda *given: call(given if several else given[0])


def arguments(example: Structure) -> tuple[Any, ...]:
    """Returns an example as the arguments that `tf.data` passes: a tuple is several arguments."""
    return example if type(example) is tuple else (example,)


def num_threads() -> int:
    """Returns the number of threads of `preprocess`.

    It is more than 1 even on one core, because `preprocess` may wait for something.
    """
    return max(2, os.cpu_count() or 1)


def plain_options() -> tf.data.Options:
    """Returns options that leave a pipeline as it is, with fixed numbers of threads."""
    options = tf.data.Options()
    # Optimization would have nothing to improve. But TensorFlow would write everything that
    # functions read, above all the user's arrays, into a graph at the beginning of each epoch: 80
    # ms for 740 MB.
    options.experimental_optimization.apply_default_optimizations = False
    # The numbers of threads are fixed, so tuning has no use. But an iterator waits for its tuning
    # thread when it is deleted, at the end of an epoch or of a round: up to 2 s were measured.
    options.autotune.enabled = False
    return options


class Preparation:
    """Runs `preprocess` on the examples of a batch.

    Args:
      preprocess: turns an example into `(x, y)`, in TensorFlow operations. None: examples stay as
        they are.
      element_spec: spec of an example.
      name: name of the data, for messages.
      what: name of `preprocess` and of `then`, for messages.
      then: functions that are called with the prepared examples, one after the other. They treat
        rows one by one.

    Attributes:
      batch_spec: specs of a prepared batch of any size.
    """

    def __init__(
        self,
        preprocess: Preprocess | None,
        element_spec: Structure,
        name: str,
        what: str = "preprocess",
        then: Sequence[Callable[[Structure], Structure]] = (),
    ) -> None:
        self._one = traced(preprocess, element_spec) if preprocess else None
        self._then = then
        self._name = name
        self._what = what
        layout = Layout(tf.nest.map_structure(structure.batch_of, element_spec))
        self._flatten = layout.flatten

        def prepare(leaves: list[tf.Tensor]) -> Structure:
            rows = layout.pack(leaves)
            if self._one is None:
                batch = tf.data.Dataset.from_tensors(rows)
            else:
                examples = tf.data.Dataset.from_tensor_slices(rows)
                examples = mapped_in_one_thread(examples, self._one)
                batch = examples.batch(tf.shape(leaves[0], tf.int64)[0])
            for call in then:
                batch = mapped_in_one_thread(batch, _with_arguments(call, batch.element_spec))
            return batch.with_options(plain_options()).get_single_element()

        self._all = tf.function(prepare, input_signature=[layout.flat_spec], autograph=False)
        prepared = self._all.get_concrete_function().structured_outputs
        self.batch_spec = tf.nest.map_structure(structure.batched, prepared)
        flat = tf.nest.flatten(self.batch_spec)
        self._example_s = LEAST_S
        """Time that an example took last time."""
        self._is_dense = all(isinstance(leaf, tf.TensorSpec) for leaf in flat)
        structure.check_sliceable(
            self.batch_spec, f"What {what} returns for {name}", of_examples=True
        )

    def __call__(self, first: int, batch: Structure, within: str = "") -> Structure:
        """Returns the prepared examples.

        Args:
          first: number of the first example.
          within: where its numbers are counted, for messages: for example in a batch.

        Raises:
          DataError: `preprocess` fails on one of the examples, or another function on all.
        """
        count = structure.num_examples(batch)
        if not count:
            return structure.empty(self.batch_spec)
        try:
            return self._in_threads(self._flatten(batch), count)
        except tf.errors.CancelledError:
            raise
        except tf.errors.OpError as error:
            each = ((first + i, _example(batch, i)) for i in range(count))
            name = f"{within} of {self._name}" if within else self._name
            raise explained(
                error, self._one, each, name, self._what, of_batch=bool(self._then)
            ) from error

    def _in_threads(self, leaves: list[tf.Tensor], count: int) -> Structure:
        """Prepares examples in several threads, if there are more cores than batches at a time.

        Each thread prepares some examples one after the other. Parallel calls within `tf.data` take
        twice the processor time if each is short.
        """
        number = min(num_threads() // AHEAD, count, int(count * self._example_s / LEAST_S))
        began = time.perf_counter()
        if number <= 1 or not self._is_dense:
            prepared, number = self._all(leaves), 1
        else:
            cuts = [(count * i // number, count * (i + 1) // number) for i in range(number)]
            pieces = [[leaf[low:high] for leaf in leaves] for low, high in cuts]
            found = list(_threads().map(self._all, pieces))
            prepared = tf.nest.map_structure(lambda *tensors: tf.concat(tensors, 0), *found)
        self._example_s = (time.perf_counter() - began) * number / count
        return prepared


@functools.cache
def _threads() -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(num_threads(), "elastic-preprocess")


def prepared_ahead(
    parts: Iterator[Part], prepare: Callable[[Part], Result]
) -> Iterator[tuple[Part, Result]]:
    """Prepares `AHEAD` parts in threads while the present one is used, and yields them in order.

    An error of `parts` or of `prepare` is raised after all parts before it.
    """
    pool = futures.ThreadPoolExecutor(AHEAD, "elastic-prepare-ahead")
    waiting: collections.deque[tuple[Part, futures.Future[Result]]] = collections.deque()
    failure: Exception | None = None
    try:
        while True:
            while failure is None and len(waiting) <= AHEAD:
                try:
                    part = next(parts)
                except Exception as error:  # the end of the parts, or an error of the user's code
                    failure = error
                else:
                    waiting.append((part, pool.submit(prepare, part)))
            if waiting:
                part, result = waiting.popleft()
                yield part, result.result()
            elif isinstance(failure, StopIteration):
                return
            elif failure is not None:
                raise failure
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def explained(
    error: tf.errors.OpError,
    preprocess: Preprocess | None,
    examples: Iterable[tuple[int, Structure]],
    name: str,
    what: str = "preprocess",
    *,
    of_batch: bool = False,
) -> ElasticError:
    """Explains an error in a batch: finds the example on which `preprocess`, if any, fails.

    Args:
      examples: examples of the batch, with their numbers.
      of_batch: whether `what` is called with whole batches, too.
    """
    if preprocess is not None:
        for number, example in examples:
            try:
                preprocess(*arguments(example))
            except tf.errors.OpError as found:
                text = f"{what} fails on example {number} of {name}: {reason(found)}"
                return read_error(text, found)
    if of_batch:
        return read_error(f"{what} fails on {name}: {reason(error)}", error)
    if isinstance(error, MAY_PASS):
        return InputUnavailableError(
            f"{what} has failed on an example of {name}, and now does not: {reason(error)}"
        )
    return DataError(
        f"The examples of {name} do not form a batch: {reason(error)}. Give all examples the same "
        f"shape, in {what} or before."
    )


def reason(error: tf.errors.OpError) -> str:
    """Returns the last line of TensorFlow's message, without the names of its nodes.

    The last line of a Python exception is its message; the traceback stands above.
    """
    text = re.sub(r"\{\{.*?\}\}", "", str(error.message).split("\n\t [[", maxsplit=1)[0])
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _example(batch: Structure, index: int) -> Structure:
    return tf.nest.map_structure(lambda t: t[index], batch)


def read_error(text: str, cause: Exception) -> DataError | InputUnavailableError:
    """Returns the error to raise for an error of reading, with a text for people."""
    passes = isinstance(cause, MAY_PASS) and not isinstance(cause, FINAL)
    return InputUnavailableError(text) if passes else DataError(text)
