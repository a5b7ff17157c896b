"""Where the variables of metrics lie in the vector of what a step stages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.keras_internals.held_objects import metrics_of
from hvd_elastic_keras.keras_internals.model_variables import KerasVariable


def parts_of_metrics(
    model: keras.Model, variables: Sequence[KerasVariable]
) -> list[tuple[keras.Metric, list[slice]]]:
    """The metrics of these variables, and the places of each one's; they lie side by side."""
    owner = {id(v): m for m in metrics_of(model) for v in m.variables}
    found: list[tuple[keras.Metric, list[slice]]] = []
    start = 0
    for _, group in itertools.groupby(variables, lambda v: id(owner.get(id(v), v))):
        members = list(group)
        sizes = [int(np.prod(v.shape)) for v in members]
        ends = start + np.cumsum(sizes)
        parts = [slice(end - n, end) for n, end in zip(sizes, ends, strict=True)]
        found.append((owner.get(id(members[0])), parts))
        start += sum(sizes)
    return found


def weighted_where(
    is_mean: npt.NDArray[np.bool_], staged: tf.Tensor, weight: tf.Tensor
) -> tf.Tensor:
    """What a micro-batch stages, of which these entries at the front are weighted; shape [n]."""
    share = tf.cast(weight, staged.dtype)
    scale = tf.where(is_mean, share, tf.ones_like(share))
    return staged * tf.concat([scale, tf.ones_like(staged[is_mean.size :])], 0)
