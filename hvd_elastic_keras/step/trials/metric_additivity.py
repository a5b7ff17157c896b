"""Finds metrics of which no worker can compute a share.

A sum, a mean or a confusion matrix can be computed in parts of a batch and added. A maximum, a last
value, or what compares the examples of a batch with one another cannot. Those that Keras updates by
its own code from targets and predictions all add up (a test shows it); others are tried.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Layout, Structure
from hvd_elastic_keras.keras_internals.held_objects import metrics_of
from hvd_elastic_keras.keras_internals.metrics import is_of_keras
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch
from hvd_elastic_keras.step.micro_batches.rows import Rows
from hvd_elastic_keras.step.micro_batches.traced import Tracing
from hvd_elastic_keras.step.trials.cut_trial import (
    HALF_PRECISION,
    LEAST,
    OTHER,
    UNKNOWN,
    halves_of,
    kind_of_values,
    sums_of,
)

TOLERANCE = 1e-4
MOVED_STARTS = (-8, 8)
"""Of the state of a metric, beside its own."""
TRIED_EXAMPLES = 64
"""Pairs are rare among few."""
State = list[Any]


@dataclasses.dataclass(frozen=True)
class Unshared:
    """A metric that no worker can compute a share of.

    Attributes:
      replaced: of each of its variables, whether its change depends on what was before, as that of
        a maximum or a last value does.
    """

    metric: keras.Metric
    replaced: tuple[bool, ...]


def metrics_that_do_not_add_up(
    model: keras.Model,
    variables: ModelVariables,
    batch_spec: Structure,
    batch: Structure,
    *,
    train: bool,
) -> list[Unshared]:
    """The metrics of the user's that no worker can compute a share of.

    Each metric sees two halves of a batch, one after the other, each alone, and both at once. It
    adds up if the second half changes its state by the same amount whatever was before, and if the
    whole changes it by the sum of both (or by their mean, where it counts batches).

    Args:
      batch: examples to try it with, at least two.
      train: whether `train_step` updates the metrics, or `test_step`.
    """
    suspects = [m for m in metrics_of(model) if not is_of_keras(m)]
    size = min(structure.num_examples(batch), TRIED_EXAMPLES) // 2 * 2
    if not suspects or not size:
        return []
    layout = Layout(batch_spec)

    def make(sums: frozenset[int]) -> MicroBatch:
        # Without what is random: a metric is to be judged, not the draws.
        tracing = Tracing(sums=sums, neutral=True, with_xla=False)
        return MicroBatch(model, variables, layout, train=train, whole=suspects, tracing=tracing)

    examples = structure.cut(batch, 0, size)
    micro_batch = make(frozenset())
    sums = sums_of([halves_of(micro_batch, examples)])
    trial = _Trial(make(sums) if sums else micro_batch, layout)
    start = [tf.identity(v.value) for m in suspects for v in m.variables]
    sizes = [len(m.variables) for m in suspects]
    changes = [trial.changes(b, start) for b in _batches(model, examples)]
    # A sum does not mind where it begins. The maximum of what is negative, say, stays at 0.
    changes += [trial.changes(examples, _moved(start, by)) for by in MOVED_STARTS]
    of_metrics = [
        [change.of(end - n, end) for change in changes]
        for n, end in zip(sizes, np.cumsum(sizes), strict=True)
    ]
    pairs = zip(suspects, of_metrics, strict=True)
    return [Unshared(m, _replaced(found)) for m, found in pairs if not _adds_up(found)]


def _moved(state: State, by: int) -> State:
    moves = (v.dtype.is_floating or (v.dtype.is_integer and not v.dtype.is_unsigned) for v in state)
    return [v + tf.cast(by, v.dtype) if m else v for v, m in zip(state, moves, strict=True)]


@dataclasses.dataclass(frozen=True)
class _Changes:
    """States of the variables of metrics after some batches; the halves are called 1 and 2."""

    start: State
    one: State
    two: State
    one_two: State
    two_one: State
    whole: State
    rounding: float = dataclasses.field(kw_only=True)
    """How much coarser than float32 they may have been computed."""

    def of(self, low: int, high: int) -> _Changes:
        """Of some of the variables."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "rounding"]
        return _Changes(*(getattr(self, name)[low:high] for name in names), rounding=self.rounding)

    @property
    def adds_up(self) -> list[bool]:
        """Whether a half changes each variable by the same amount whatever was before."""
        tolerance = TOLERANCE * self.rounding
        states = zip(self.start, self.one, self.two, self.one_two, self.two_one, strict=True)
        return [
            np.allclose(one_two - one, two - start, rtol=tolerance, atol=tolerance)
            and np.allclose(two_one - two, one - start, rtol=tolerance, atol=tolerance)
            for start, one, two, one_two, two_one in states
        ]

    @property
    def sizes(self) -> list[float]:
        """How much a batch or a half of it changes each variable, at most."""
        states = zip(self.start, self.whole, self.one, self.two, strict=True)
        return [
            max(float(np.max(np.abs(after - start), initial=0.0)) for after in afters)
            for start, *afters in states
        ]

    def kinds(self, largest: Sequence[float]) -> list[str]:
        """What the change of each variable by the whole is, beside those by the halves.

        Args:
          largest: by variable, what any batch changes it by. Beside that, a mean of errors that are
            all 0 but for rounding tells nothing.
        """
        states = zip(self.start, self.whole, self.one, self.two, strict=True)
        found = [
            kind_of_values(whole - start, one - start, two - start, rounding=self.rounding)
            for start, whole, one, two in states
        ]
        least = LEAST * self.rounding
        return [
            kind if size > least * most else UNKNOWN
            for kind, size, most in zip(found, self.sizes, largest, strict=True)
        ]


class _Trial:
    """Lets the metrics see a batch in several ways."""

    def __init__(self, micro_batch: MicroBatch, layout: Layout) -> None:
        self._micro_batch = micro_batch
        self._layout = layout

    def changes(self, batch: Structure, start: State) -> _Changes:
        """The states it leads to, from the state `start`."""
        size = structure.num_examples(batch)
        first = structure.cut(batch, 0, size // 2)
        second = structure.cut(batch, size // 2, size)
        one, two = self._after(first, start, 0, size), self._after(second, start, 1, size)
        states = (
            *(start, one, two),
            *(self._after(second, one, 1, size), self._after(first, two, 0, size)),
            self._after(batch, start, 0, size),
        )
        rounding = HALF_PRECISION if self._micro_batch.computes_in_half else 1.0
        arrays = ([np.asarray(v, np.float64) for v in state] for state in states)
        return _Changes(*arrays, rounding=rounding)

    def _after(self, batch: Structure, state: State, half: int, total: int) -> State:
        """The state after a batch: all of `total` examples, or their first or second half."""
        size = structure.num_examples(batch)
        numbers = (0, half, half * (total - size), size, total)
        rows = Rows(*(tf.constant(n, tf.int64) for n in numbers))
        results = self._micro_batch(self._layout.flatten(batch), rows, state)
        return self._micro_batch.whole_of(results)


def _adds_up(changes: Sequence[_Changes]) -> bool:
    largest = [max(sizes) for sizes in zip(*(c.sizes for c in changes), strict=True)]
    by_variable = zip(*(change.kinds(largest) for change in changes), strict=True)
    found = [set(kinds) - {UNKNOWN} for kinds in by_variable]
    clear = all(len(kinds) <= 1 and OTHER not in kinds for kinds in found)
    return clear and not any(_replaced(changes))


def _replaced(changes: Sequence[_Changes]) -> tuple[bool, ...]:
    """Of each variable, whether its change depends on what was before."""
    return tuple(not all(found) for found in zip(*(c.adds_up for c in changes), strict=True))


def _batches(model: keras.Model, batch: Structure) -> Iterator[Structure]:
    """The batch, and others made of it that show what it may hide.

    Where few predictions are right, say, a metric that counts pairs of equal labels counts none.
    """
    yield batch
    first = structure.cut(batch, 0, 1)
    size = structure.num_examples(batch)
    with contextlib.suppress(Exception):  # what cannot be repeated tells nothing
        yield tf.nest.map_structure(lambda t: t if t is None else tf.concat([t] * size, 0), first)
    with contextlib.suppress(Exception):  # models and targets may be of any form
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with keras.StatelessScope():  # random layers would move their generators on
            y_pred = model(x, training=False)
        right = _as_predicted(y_pred, y)
        packed = (x, right) if sample_weight is None else (x, right, sample_weight)
        tf.nest.assert_same_structure(packed, batch)
        yield packed


def _as_predicted(y_pred: Any, y: Any) -> Any:
    """Targets that the predictions meet."""
    y_pred, y = tf.convert_to_tensor(y_pred), tf.convert_to_tensor(y)
    if y_pred.shape == y.shape:
        return tf.cast(tf.round(y_pred) if y.dtype.is_integer else y_pred, y.dtype)
    labels = tf.cast(tf.argmax(y_pred, -1), y.dtype)
    return tf.reshape(labels, tf.shape(y))
