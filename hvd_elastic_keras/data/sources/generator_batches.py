"""A Python generator of batches, as `fit` reads it. It cannot be rewound.

Keras takes two batches to see their form. Every pass begins with these two again, and then
continues where the generator is. While a batch is used, the next one is read. After an evaluation
that ends with `validation_steps`, this next batch is lost. Here exactly one batch is lost, so that
all workers have the same batches. In Keras more may be lost, if the generator is sometimes faster
and sometimes slower than the steps.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError, ElasticError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.plan.fit_passes import Passes, Reader
from hvd_elastic_keras.data.sources.dataset_batches import ADVICE
from hvd_elastic_keras.data.sources.global_draws import OwnState
from hvd_elastic_keras.data.sources.reader import PrepareRows

_END = object()
TOLD = (
    "{name}: the generator draws from Python or NumPy as if nothing else did meanwhile. The "
    "numbers are the same for any number of workers, but not always those of plain fit."
)


def generator_state(name: str, reader: Reader, seed: int) -> OwnState:
    """Returns the state from which a generator draws if other workers read it, too.

    A worker that joins later reads it without the draws of others in between. The training goes on
    with the present state, as in plain Keras.
    """
    trains = reader is Reader.TRAINING
    return OwnState(TOLD.format(name=name), None if trains else seed)


class GeneratorBatches:
    """The batches of a generator. Each batch is asked for once.

    Args:
      first: the batches that Keras has taken to see their form.
      rest: the generator itself, which continues after them.
      spec: spec of a batch, as Keras has seen it.
      name: name of the data, for messages.
      passes: the rule that maps epochs to passes.
      draws: the state from which the generator draws random numbers; None: the global one.
    """

    batches_per_pass: int | None = None
    has_one_size = False
    prepare: PrepareRows | None = None

    def __init__(
        self,
        first: Sequence[Any],
        rest: Iterator[Any],
        spec: Structure,
        name: str,
        passes: Passes,
        *,
        draws: OwnState | None = None,
    ) -> None:
        self.name = name
        self.advice = ADVICE
        self.is_exclusive = False
        self._spec = spec
        self._rest = rest
        self._passes = passes
        structure.check_sliceable(spec, name)
        self.batch_spec = tf.nest.map_structure(structure.batched, spec)
        self._first = [self._converted(batch) for batch in first]
        self.first = self._first[0]
        self._taken = 0
        """Batches of `rest` that have been used, or lost."""
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "elastic-generator")
        self._ahead: concurrent.futures.Future[Any] | None = None
        self._draws = draws

    def open(self, number: int, position: int) -> Iterator[Structure]:
        """Opens a pass at its front: `position` is 0.

        Raises:
          ElasticError: the generator has already gone further in this process.
        """
        # A training that reaches a second pass has read the generator to its end.
        epochs = (math.inf if number else 0) if self._passes.goes_on else number
        before = self._taken_after(epochs)
        if self._taken > before:
            # Not a DataError, which would end the job: a new process can do it.
            raise ElasticError(
                f"Pass {number} of {self.name} has to be read again after later ones, but a "
                "generator goes on. The process has to start again."
            )
        self._take_up_to(before)
        return self._pass()

    def on_epoch_begin(self) -> None:
        """Does nothing: a generator has no such hook."""

    def on_epoch_end(self) -> None:
        """Does nothing: a generator has no such hook."""

    def on_stop(self) -> None:
        """Does nothing: a generator has no such hook."""

    def finish(self, epochs: int, *, stopped: bool) -> None:
        """Takes the batches that have been read ahead, or that other workers have taken meanwhile.

        The script may use the generator afterwards, so no thread may be in it then.
        """
        with contextlib.suppress(Exception):  # nobody uses these batches
            self._take_up_to(0 if stopped else self._taken_after(epochs))
        if self._ahead is not None:
            concurrent.futures.wait([self._ahead])

    def _taken_after(self, epochs: float) -> float:
        """Returns how many batches of `rest` are used or lost in `epochs` epochs."""
        steps, again = self._passes.steps_per_epoch, len(self._first)
        if not epochs:
            return 0
        if steps is None:
            return math.inf  # each epoch reads to the end
        if self._passes.goes_on:
            return max(0, epochs * steps + 1 - again)
        return epochs * max(0, steps + 1 - again)

    def _take_up_to(self, count: float) -> None:
        while self._taken < count and self._take() is not _END:
            pass

    def _pass(self) -> Iterator[Structure]:
        for index, batch in enumerate(self._first, 1):
            if index == len(self._first):
                self._ask()
            yield batch
        while (batch := self._next()) is not None:
            self._ask()
            yield batch

    def _ask(self) -> concurrent.futures.Future[Any]:
        """Starts reading the next batch, unless a thread already reads it."""
        if self._ahead is None:
            self._ahead = self._pool.submit(self._read)
        return self._ahead

    def _read(self) -> Any:
        with contextlib.nullcontext() if self._draws is None else self._draws.drawing():
            return next(self._rest, _END)

    def _take(self) -> Any:
        """Returns the next batch of `rest`, not converted; always `_END` after its end."""
        ahead, self._ahead = self._ask(), None
        batch = ahead.result()
        self._taken += batch is not _END
        return batch

    def _next(self) -> Structure:
        """Returns the next batch of `rest`; None at its end."""
        batch = self._take()
        return None if batch is _END else self._converted(batch)

    def _converted(self, batch: Any) -> Structure:
        """Returns a batch as tensors with the same dtypes as the first batches."""
        try:
            return tf.nest.map_structure(self._tensor, self._spec, batch)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"A batch of {self.name} is not of the form of the first ones, which were "
                f"{self._spec}: {str(error).splitlines()[0]} Give all batches the same structure; "
                "dimensions that vary have to differ between the first two."
            ) from error

    def _tensor(self, spec: Any, value: Any) -> Any:
        if spec is None:
            return None
        if isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
            tensor = tf.cast(value, spec.dtype) if value.dtype != spec.dtype else value
        else:
            with tf.device("CPU:0"):
                array = np.asarray(value)
                tensor = tf.convert_to_tensor(
                    array if array.dtype == object else array.astype(spec.dtype.as_numpy_dtype)
                )
        if not spec.shape.is_compatible_with(tensor.shape):
            raise ValueError(f"Shape {tensor.shape} where {spec.shape} was expected.")
        return tensor
