"""Tries, before anybody joins, whether micro-batches may be computed in one pass.

One pass over several micro-batches gives what one after the other gives if each example is computed
by itself, and batch norm keeps to each micro-batch (`grouped_batch_norm.py`). Real examples are
tried, and the same ones with holes: numbers that a `train_step` might leave out, which is where a
mean over what is left would show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.step.micro_batches.across_examples import BATCH_NORM
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch
from hvd_elastic_keras.step.micro_batches.traced import Trial
from hvd_elastic_keras.step.trials.cut_trial import (
    ZERO,
    Halves,
    Tried,
    halves_of,
    kinds_of_terms,
)

STAGED_TOLERANCE = 1e-4
LEAST_STAGED = 1e-6
HOLES = 0.5
"""Of the numbers of the second half."""


def why_not_together(
    micro_batch: MicroBatch, variables: ModelVariables, batch: Structure, width: int
) -> str:
    """Why a model's micro-batches must be computed one after the other; empty if they need not.

    Args:
      batch: examples.
      width: of a micro-batch.
    """
    if micro_batch.runs_eagerly:
        return "the model runs eagerly"
    if micro_batch.uses_xla:
        return "XLA would compile anew for each number of them"
    if micro_batch.computes_in_half:
        return "half precision would round differently"
    if micro_batch.has_whole_metrics:
        return "there are metrics that do not add up"
    if across := sorted(micro_batch.notes.across - {BATCH_NORM}):
        names = ", ".join(across)
        return f"what depends on the cut ({names}) would see more than one"
    if structure.num_examples(batch) < 2:
        return "there is only one example to try it with"
    tried = Tried(variables, batch, width)
    found = tried.halves(micro_batch, together=2)
    if ZERO in kinds_of_terms(found):
        return "no trial shows what a loss is that is 0 at first"
    found.append(halves_of(micro_batch, with_holes(tried.first), together=2))
    if not all(_adds_up(micro_batch, halves) for halves in found):
        return "the result of two at once is not that of one after the other"
    return ""


def with_holes(batch: Structure) -> Structure:
    """A batch of which the second half has zeros in many places."""
    return tf.nest.map_structure(_with_holes, batch)


def _with_holes(leaf: Any) -> Any:
    values = np.array(leaf)
    if values.dtype.kind not in "biuf":
        return leaf
    half = values[len(values) // 2 :]
    half[np.random.default_rng(len(half)).random(half.shape) < HOLES] = 0
    return values


def _adds_up(micro_batch: MicroBatch, halves: Halves) -> bool:
    weights = (1.0, 0.5, 0.5)
    pairs = zip(halves.parts, weights, strict=True)
    return halves.gradients_fit and _near(
        *(_weighted_staged(micro_batch, trial, weight) for trial, weight in pairs)
    )


def _near(
    both: npt.NDArray[np.float64], first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
) -> bool:
    scale = np.abs(both) + np.abs(first) + np.abs(second)
    near = np.abs(both - (first + second)) <= STAGED_TOLERANCE * scale + LEAST_STAGED
    # Not a number is not comparable: it tells nothing.
    return bool(np.all(near | ~np.isfinite(scale)))


def _weighted_staged(
    micro_batch: MicroBatch, trial: Trial, weight: float
) -> npt.NDArray[np.float64]:
    results = micro_batch.with_means_weighted(trial.added.tensors, tf.constant(weight))
    return np.asarray(micro_batch.accumulated(results).staged, np.float64)
