"""Finds metrics whose state does not add up over parts of the data.

A sum, a mean or a confusion matrix can be computed in shares and added. A maximum, a last value
or a running variance cannot. Keras's own metrics all add up (a test shows it); others are tried.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.data import structure
from hvd_elastic_keras.data.structure import Layout, Structure
from hvd_elastic_keras.training.micro_batch import MicroBatch
from hvd_elastic_keras.training.variables import ModelVariables, metrics_of

KERAS = "keras.src."
TOLERANCE = 1e-4


def metrics_that_do_not_add_up(
    model: keras.Model, variables: ModelVariables, batch_spec: Structure, batch: Structure
) -> list[keras.Metric]:
    """The metrics that no worker can compute a share of.

    Each metric sees two halves of a batch, one after the other and each alone. It adds up if the
    second half changes its state by the same amount in both cases.

    Args:
      batch: examples to try it with, at least two.
    """
    suspects = [m for m in metrics_of(model) if not _is_of_keras(m)]
    size = structure.num_examples(batch)
    if not suspects or size < 2:
        return []
    layout = Layout(batch_spec)
    trial = MicroBatch(model, variables, layout, train=False, whole=suspects)
    halves = [structure.cut(batch, 0, size // 2), structure.cut(batch, size // 2, size)]
    first, second = (layout.flatten(half) for half in halves)

    def after(data: list[tf.Tensor], state: list[tf.Tensor]) -> list[tf.Tensor]:
        results = trial(data, tf.constant(0, tf.int64), tf.constant(1.0), state)
        return trial.whole_of(results)

    start = [tf.identity(v.value) for m in suspects for v in m.variables]
    # From another state than the initial one too: a maximum of negative values stays at 0.
    one, other = after(first, start), after(second, start)
    both, swapped = after(second, one), after(first, other)
    good = [_same_change(values) for values in zip(start, one, other, both, swapped, strict=True)]
    sizes = [len(m.variables) for m in suspects]
    ends = np.cumsum(sizes)
    return [
        m for m, n, end in zip(suspects, sizes, ends, strict=True) if not all(good[end - n : end])
    ]


def _same_change(values: tuple[Any, ...]) -> bool:
    start, one, other, both, swapped = (np.asarray(v, np.float64) for v in values)
    return bool(
        np.allclose(both - one, other - start, rtol=TOLERANCE, atol=TOLERANCE)
        and np.allclose(swapped - other, one - start, rtol=TOLERANCE, atol=TOLERANCE)
    )


def _is_of_keras(metric: keras.Metric) -> bool:
    """Whether the state of a metric is updated by Keras's own code."""
    owner = next(c for c in type(metric).__mro__ if "update_state" in vars(c))
    return owner.__module__.startswith(KERAS)
