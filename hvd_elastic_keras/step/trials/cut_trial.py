"""Tries, before anybody joins, what becomes of a model's losses and metrics if a batch is cut.

A few real examples are computed at once and in two halves, with everything else as it is: weights,
and random numbers, of which each half draws its rows. Where the halves do not give the whole, the
result of a training depends on the cut. Nothing is assigned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch
from hvd_elastic_keras.step.micro_batches.traced import Tensors, Tracing, Trial
from hvd_elastic_keras.step.trials import told_of_cut
from hvd_elastic_keras.step.trials.other_values import other_values
from hvd_elastic_keras.step.trials.told_of_cut import Cut

TRIED_EXAMPLES = 8
GRADIENT_TOLERANCE = 1e-3
"""Of a variable's gradient, relative to its size: float32 in other shapes rounds to 1e-6 or so."""
LEAST = 1e-5
"""Relative to all gradients, or all numbers of a metric: smaller ones are rounding, as the gradient
of a bias before batch norm."""
VALUE_TOLERANCE = 1e-4
HALF_PRECISION = 50.0
"""Tolerances are so many times larger where layers compute with 16 bits."""
SUM, MEAN, OTHER, UNKNOWN, ZERO = "sum", "mean", "other", "unknown", "zero"


@dataclasses.dataclass(frozen=True)
class Halves:
    """What a batch would add as a whole, and its two halves; but for gradients, which are large.

    Attributes:
      rounding: how much coarser than float32 it may have been computed.
      gradients_fit: whether those of the halves add up to those of the whole.
      is_finite: whether all gradients are finite.
    """

    whole: Trial
    first: Trial
    second: Trial
    rounding: float
    gradients_fit: bool
    is_finite: bool

    @property
    def parts(self) -> tuple[Trial, Trial, Trial]:
        """All three."""
        return self.whole, self.first, self.second


def micro_batch_for_cut(
    make: Callable[[Tracing], MicroBatch],
    variables: ModelVariables,
    batch: Structure,
    cut: Cut,
    seed: int,
) -> Fitting:
    """The micro-batch of a step, whose sums are weighed as sums.

    Args:
      make: traces one.
      batch: examples.

    Raises:
      ConfigurationError: the loss looks across the examples of a batch, and nobody has chosen a
        micro-batch size.
    """
    plain = make(Tracing(seed=seed))
    if plain.runs_eagerly:
        plain.trial(batch)
    told = [
        *told_of_cut.about_draws(plain),
        *told_of_cut.about_order(plain),
        *told_of_cut.about_variables(plain),
        *told_of_cut.about_logs(plain, cut),
    ]
    if not cut.cuts or structure.num_examples(batch) < 2:
        return Fitting(plain, told)
    trials = _Trials(make, plain, Tried(variables, batch, cut.micro_batch_size), seed)
    notes = plain.notes
    # Of what looks across examples the result is known.
    if not notes.across and (fitting := trials.fitting(plain, neutral=False)):
        return trials.outcome(fitting, told, cut)
    if (notes.across or notes.is_random) and (fitting := trials.fitting(plain, neutral=True)):
        return trials.outcome(fitting, [*told, *told_of_cut.about_cut(plain, cut)], cut)
    text = told_of_cut.refusal_across_examples(trials.terms(OTHER), cut)
    if not cut.is_chosen:
        raise ConfigurationError(text)
    return Fitting(plain, [*told, text])


@dataclasses.dataclass(frozen=True)
class Fitting:
    """The micro-batch of a step that fits a model.

    Attributes:
      told: what people should know before the training begins.
      apart: metrics of which the whole does not follow from its parts.
    """

    micro_batch: MicroBatch
    told: list[str]
    apart: list[keras.Metric] = dataclasses.field(default_factory=list)


class _Trials:
    """Tries ways to trace a micro-batch on the same examples."""

    def __init__(
        self, make: Callable[[Tracing], MicroBatch], plain: MicroBatch, tried: Tried, seed: int
    ) -> None:
        self._make = make
        # Where XLA plays no part, the real one will do.
        self._made = {} if plain.uses_xla else {Tracing(seed=seed, with_xla=False): plain}
        self._names = plain.notes.terms
        self._examples = tried
        self._seed = seed
        self.last: Sequence[Halves] = ()

    def terms(self, kind: str) -> list[str]:
        """The names of the terms of the loss that are of this kind, by the last trials."""
        kinds = zip(self._names, kinds_of_terms(self.last), strict=False)  # eager ones may differ
        return [name for name, found in kinds if found == kind]

    def outcome(self, fitting: MicroBatch, told: Sequence[str], cut: Cut) -> Fitting:
        """What is known of a micro-batch that fits."""
        told = [*told, *told_of_cut.about_zeros(self.terms(ZERO), cut)]
        return Fitting(fitting, told, _apart(fitting, self.last))

    def fitting(self, plain: MicroBatch, *, neutral: bool) -> MicroBatch | None:
        """A micro-batch of which two halves give the whole; None if there is none.

        Args:
          plain: without any sums.
          neutral: whether it is tried without what is known to look across examples.
        """
        found = self._tried(frozenset(), neutral)
        self.last = found
        sums = sums_of(found)
        if sums:
            of_weighed = self._tried(sums, neutral)
            if _gradients_fit(of_weighed):
                self.last = of_weighed
                weighed = self._make(Tracing(seed=self._seed, sums=sums))
                if weighed.runs_eagerly:
                    weighed.trial(self._examples.first)
                _average_means(weighed, of_weighed)
                return weighed
        # If not: `train_step` itself makes means of these sums.
        _average_means(plain, found)
        return plain if _gradients_fit(found) else None

    def _tried(self, sums: frozenset[int], neutral: bool) -> list[Halves]:
        tracing = Tracing(seed=self._seed, sums=sums, neutral=neutral, with_xla=False)
        if tracing not in self._made:
            self._made[tracing] = self._make(tracing)
        return self._examples.halves(self._made[tracing])


# --- trying ------------------------------------------------------------------------------


class Tried:
    """The examples, and the values of variables, with which a model is tried.

    Args:
      batch: at least two examples.
      width: so many at a time may be needed, of those that come later in the batch.
    """

    def __init__(self, variables: ModelVariables, batch: Structure, width: int) -> None:
        self._variables = variables
        self._batch = batch
        count = structure.num_examples(batch) // 2 * 2
        self._size = min(count, TRIED_EXAMPLES)
        self._width = min(count, max(self._size, width // 2 * 2))
        self.first = structure.cut(batch, 0, self._size)

    def halves(self, micro_batch: MicroBatch, together: int = 1) -> list[Halves]:
        """What the first examples and their halves would add; with other values, too.

        A term of the loss that is 0 tells nothing. Its weight may be 0 at first, or it may concern
        only examples that come later.

        Args:
          together: micro-batches in one pass over the whole.
        """
        found = [halves_of(micro_batch, self.first, together)]
        if not _gradients_fit(found) and not sums_of(found):
            return found
        for others in other_values(self._variables, micro_batch):
            with others:
                near = halves_of(micro_batch, self.first, together)
                if near.is_finite:
                    found.append(near)
        last = structure.num_examples(self._batch) - self._width
        for low in range(self._size, last + self._width, self._width):
            if ZERO not in kinds_of_terms(found):
                break
            begin = min(low, last)
            examples = structure.cut(self._batch, begin, begin + self._width)
            found.append(halves_of(micro_batch, examples, together))
        return found


def halves_of(micro_batch: MicroBatch, batch: Structure, together: int = 1) -> Halves:
    """What a batch, of so many micro-batches in one pass, and its halves would add."""
    size = structure.num_examples(batch)
    half = size // 2
    rounding = HALF_PRECISION if micro_batch.computes_in_half else 1.0
    whole, gradients = _apart_from_gradients(micro_batch.trial(batch, together=together))
    compared = ComparedGradients(gradients)
    del gradients  # of a large model, they are as large as all of it

    def part(low: int, high: int) -> Trial:
        trial = micro_batch.trial(structure.cut(batch, low, high), low, size)
        found, gradients = _apart_from_gradients(trial)
        compared.take_half(gradients)
        return found

    first, second = part(0, half), part(half, size)
    return Halves(whole, first, second, rounding, compared.fit(rounding), compared.is_finite)


def _apart_from_gradients(trial: Trial) -> tuple[Trial, Tensors]:
    added = dataclasses.replace(trial.added, gradients=[])
    return dataclasses.replace(trial, added=added), trial.added.gradients


class ComparedGradients:
    """The gradients of a whole, less those of its halves as they come; it holds one of each."""

    def __init__(self, whole: Tensors) -> None:
        self._left = list(whole)
        self._of_whole = np.array([norm(gradient) for gradient in whole])
        self._of_halves = np.zeros(len(whole))

    def take_half(self, half: Tensors) -> None:
        """Takes those of a half, weighted by its examples."""
        self._of_halves += [norm(gradient) for gradient in half]
        for number, gradient in enumerate(half):
            self._left[number] -= gradient

    @property
    def is_finite(self) -> bool:
        """Whether all numbers were."""
        return bool(np.isfinite(self._of_whole).all() and np.isfinite(self._of_halves).all())

    def fit(self, rounding: float) -> bool:
        """Whether nothing is left, apart from rounding."""
        off = np.array([norm(gradient) for gradient in self._left])
        sizes = np.maximum(self._of_whole, self._of_halves)
        least = LEAST * np.sqrt(np.sum(sizes**2))
        # Not a number is not comparable: it tells nothing.
        return not np.any(off > rounding * (GRADIENT_TOLERANCE * sizes + least))


def norm(tensor: Any) -> float:
    """The Euclidean norm, without a copy in higher precision."""
    values = tf.convert_to_tensor(tensor)
    wide = values if values.dtype == tf.float64 else tf.cast(values, tf.float32)
    largest = tf.reduce_max(tf.abs(tf.reshape(wide, [-1])))
    if not np.isfinite(largest) or largest <= 0:
        return max(float(largest), 0.0)  # that of no numbers is minus infinity
    return float(largest) * float(tf.norm(wide / largest))


# --- judging -----------------------------------------------------------------------------


def _gradients_fit(tried: Sequence[Halves]) -> bool:
    """Whether those of two halves add up to those of the whole in all that was tried."""
    return all(halves.gradients_fit for halves in tried)


def sums_of(tried: Sequence[Halves]) -> frozenset[int]:
    """The numbers of the terms that are sums over the examples."""
    return frozenset(i for i, kind in enumerate(kinds_of_terms(tried)) if kind == SUM)


def kinds_of_terms(tried: Sequence[Halves]) -> list[str]:
    """What each term of the loss is, as far as the examples tell."""
    values = [np.stack([trial.terms for trial in halves.parts]) for halves in tried]
    rounding = max(halves.rounding for halves in tried)
    return [_kind([v[:, i] for v in values], rounding) for i in range(values[0].shape[1])]


def _kind(values: Sequence[Any], rounding: float) -> str:
    if not np.any(values):
        return ZERO
    kinds = {
        kind
        for w, f, s in values
        if (kind := kind_of_values(w, f, s, rounding=rounding)) != UNKNOWN
    }
    if len(kinds) > 1:
        return OTHER
    return kinds.pop() if kinds else UNKNOWN


def kind_of_values(
    whole: Any, first: Any, second: Any, *, rounding: float = 1.0, largest: float = 0.0
) -> str:
    """What numbers are of which the whole, an array or a number, and two halves are known.

    Args:
      largest: of numbers beside them, to which what is small is rounding.
    """
    scale = np.abs(whole) + np.abs(first) + np.abs(second)
    if not np.all(np.isfinite(scale)) or not np.any(scale > 0):
        return UNKNOWN
    near = rounding * (VALUE_TOLERANCE * scale + LEAST * max(np.max(scale), largest))
    if np.all(np.abs(whole - (first + second)) <= near):
        return SUM
    if np.all(np.abs(whole - (first + second) / 2) <= near):
        return MEAN
    return OTHER


def _average_means(micro_batch: MicroBatch, tried: Sequence[Halves]) -> None:
    """Averages metrics that count batches rather than examples.

    A metric that is updated with a loss, as `Mean().update_state(loss)`, adds 1 to its count for
    each batch, however large. Micro-batches must not count as batches then: such changes are
    averaged, weighted by examples, where others are added.
    """
    kinds: list[str] = []
    for _, parts in micro_batch.metrics_and_parts():
        of_metric = [_first_clear(by_trial) for by_trial in _kinds_of_parts(parts, tried)]
        clear = set(of_metric) - {OTHER}
        # A variable that is only rounding here, a mean of nothing say, goes with the others.
        rest = clear.pop() if len(clear) == 1 else SUM
        kinds += [rest if kind == OTHER else kind for kind in of_metric]
    micro_batch.average_instead_of_add([i for i, kind in enumerate(kinds) if kind == MEAN])


def _first_clear(kinds: Sequence[str]) -> str:
    return next((kind for kind in kinds if kind in (SUM, MEAN)), OTHER)


def _kinds_of_parts(parts: Sequence[slice], tried: Sequence[Halves]) -> list[list[str]]:
    """What the change of each variable of a metric is, by each trial."""
    found: list[list[str]] = [[] for _ in parts]
    for halves in tried:
        changes = [np.asarray(t.added.staged, np.float64) for t in halves.parts]
        # A mean of values near zero has a count beside it.
        largest = max(np.max(np.abs(c[part]), initial=0) for c in changes for part in parts)
        for kinds, part in zip(found, parts, strict=True):
            of_part = (c[part] for c in changes)
            kinds.append(kind_of_values(*of_part, rounding=halves.rounding, largest=largest))
    return found


def _apart(micro_batch: MicroBatch, tried: Sequence[Halves]) -> list[keras.Metric]:
    """The metrics of which the change by the whole is neither sum nor mean of those by halves."""
    return [
        metric
        for metric, parts in micro_batch.metrics_and_parts()
        if metric is not None and any(OTHER in kinds for kinds in _kinds_of_parts(parts, tried))
    ]
