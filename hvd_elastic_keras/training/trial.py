"""Tries, before anybody joins, how metrics and loss of a model behave if a batch is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data import structure
from hvd_elastic_keras.data.structure import Structure
from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.training.micro_batch import MicroBatch, Tensors

SUM_TOLERANCE = 0.1
"""Relative to the gradients, which differ by as much as themselves where the loss is a mean."""


def try_halves(micro_batch: MicroBatch, batch: Structure) -> None:
    """Finds out which metrics count batches rather than examples.

    A metric that is updated with a loss, as `Mean().update_state(loss)`, adds 1 to its count
    for each batch, however large. Micro-batches must not count as batches then: such changes
    are averaged, weighted by examples, where others are added.

    Tries it with some examples, all at once and in two halves; nothing is assigned.

    Args:
      batch: at least two examples, else nothing is learnt.

    Raises:
      ConfigurationError: the loss is a sum over the examples.
    """
    half = structure.num_examples(batch) // 2
    if not half:
        return
    whole, first, second = (
        micro_batch.trial(structure.cut(batch, low, high))
        for low, high in ((0, 2 * half), (0, half), (half, 2 * half))
    )
    _check_that_loss_is_a_mean(whole.gradients, first.gradients, second.gradients)
    parts = micro_batch.parts_by_metric()
    if parts:
        changes = [np.asarray(trial.staged, np.float64) for trial in (whole, first, second)]
        means = [
            np.full(part.stop - part.start, _is_mean(*(c[part] for c in changes))) for part in parts
        ]
        micro_batch.average(np.concatenate(means))


def _check_that_loss_is_a_mean(whole: Tensors, first: Tensors, second: Tensors) -> None:
    """Raises `ConfigurationError` if the gradients of two halves of a batch add up to its own.

    Those of a mean over examples average instead; random layers and the like lie between.
    """
    parts = list(zip(whole, first, second, strict=True))
    limit = SUM_TOLERANCE**2 * sum(_sum_of_squares(w) for w, _, _ in parts)
    off_as_sum = sum(_sum_of_squares(w - (f + s)) for w, f, s in parts)
    # A half that is masked, or whose class is ignored, tells nothing.
    halves = [sum(_sum_of_squares(half[i]) for half in parts) for i in (1, 2)]
    if off_as_sum < limit < min(halves):
        raise ConfigurationError(
            "The loss is a sum over the examples of a batch, expected a mean, which stays the "
            "same however a batch is divided. Take the mean and, for the same steps, multiply the "
            "learning rate by the batch size."
        )


def _sum_of_squares(tensor: tf.Tensor) -> float:
    return float(tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64))))


def _is_mean(whole: Any, first: Any, second: Any) -> bool:
    """Whether the changes by two halves average, rather than add up, to that by the whole."""
    scale = np.abs(whole) + np.abs(first) + np.abs(second) + 1e-12
    off_as_sum = float(np.max(np.abs(whole - (first + second)) / scale, initial=0.0))
    off_as_mean = float(np.max(np.abs(whole - (first + second) / 2) / scale, initial=0.0))
    return off_as_mean < off_as_sum
