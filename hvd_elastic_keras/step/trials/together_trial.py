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
from hvd_elastic_keras.step.trials.cut_trial import TRIED_EXAMPLES, Fitting, halves_of
from hvd_elastic_keras.step.trials.other_values import raised_numbers

STAGED_TOLERANCE = 1e-4
LEAST_STAGED = 1e-6
HOLES = 0.5
"""Of the numbers of the second half."""


def why_not_together(fitting: Fitting, variables: ModelVariables, batch: Structure) -> str:
    """Why a model's micro-batches must be computed one after the other; empty if they need not."""
    micro_batch = fitting.micro_batch
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
    if fitting.unknown:
        return f"no trial shows what a loss ({', '.join(fitting.unknown)}) is that is 0 at first"
    size = min(structure.num_examples(batch), TRIED_EXAMPLES) // 2 * 2
    if not size:
        return "there is only one example to try it with"
    examples = structure.cut(batch, 0, size)
    add_up = [_add_up(micro_batch, examples), _add_up(micro_batch, with_holes(examples))]
    for others in raised_numbers(variables, micro_batch):
        with others:
            add_up.append(_add_up(micro_batch, examples))
    return "" if all(add_up) else "the result of two at once is not that of one after the other"


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


def _add_up(micro_batch: MicroBatch, batch: Structure) -> bool:
    found = halves_of(micro_batch, batch, together=2)
    if not found.gradients_fit:
        return False
    weights = (1.0, 0.5, 0.5)
    pairs = zip(found.parts, weights, strict=True)
    return _near(*(_weighted_staged(micro_batch, trial, weight) for trial, weight in pairs))


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
