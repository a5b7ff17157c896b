"""Computes mean and variance over all rows in one round of collectives in place of two.

A graph computes them one after the other: the mean, and then the mean of the squared deviations
from it. Workers that send both for their own rows can combine them (Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances", 1979). The variance is
the mean of the workers' variances plus the mean of the squared deviations of the workers' means. No
large numbers are subtracted from each other, unlike in a difference of a mean square and a squared
mean.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.step.partition.rules.states import State

MOST_BYTES = 1 << 16
"""Largest size of a mean. Every worker receives the moments of all others, so two sums of larger
tensors cost less."""


@dataclasses.dataclass(frozen=True)
class Moments:
    """Two operations of a graph that are computed together.

    Attributes:
      mean, variance: the operations, both `Mean`, over the same axes.
      axes: those axes, from 0.
      state: the state of the tensor whose mean is computed: sharded along one of the axes.
    """

    mean: Any
    variance: Any
    axes: tuple[int, ...]
    state: State


def variances(operations: Iterable[Any]) -> dict[Any, tuple[Any, tuple[int, ...]]]:
    """Maps the operation of a mean to the operation of the variance about it, and their axes."""
    found = {}
    for op in operations:
        mean = _mean_within(op) if op.type == "Mean" else None
        if mean is None or not mean.get_attr("keep_dims"):
            continue
        axes, shape = _axes(mean), mean.outputs[0].shape
        if axes is None or axes != _axes(op) or not shape.is_fully_defined():
            continue
        if shape.num_elements() * mean.outputs[0].dtype.size <= MOST_BYTES:
            found[mean] = op, axes
    return found


def _mean_within(variance: Any) -> Any | None:
    """Returns the mean about which this operation is the variance; None if it is no variance."""
    deviations = variance.inputs[0].op
    if deviations.type == "Square":
        deviations = deviations.inputs[0].op
        if deviations.type != "Sub":
            return None
    elif deviations.type != "SquaredDifference":
        return None
    for rows, centre in (deviations.inputs, reversed(deviations.inputs)):
        mean = centre.op
        while mean.type in ("StopGradient", "Identity"):
            mean = mean.inputs[0].op
        if mean.type == "Mean" and mean.inputs[0].name == rows.name:
            return mean
    return None


def _axes(reduction: Any) -> tuple[int, ...] | None:
    axes, rank = tf.get_static_value(reduction.inputs[1]), reduction.inputs[0].shape.rank
    if axes is None or rank is None:
        return None
    return tuple(sorted({int(axis) % rank for axis in np.ravel(axes)}))


def own_moments(rows: Sequence[tf.Tensor], found: Sequence[Moments], share: Any) -> tf.Tensor:
    """Returns what a worker sends the others, as one row: means, variances, its share of the rows.

    Args:
      rows: the worker's rows of each tensor.
    """
    means = [tf.reduce_mean(x, m.axes, True) for x, m in zip(rows, found, strict=True)]
    own_variances = [
        tf.reduce_mean(tf.math.squared_difference(x, mean), m.axes)
        for x, mean, m in zip(rows, means, found, strict=True)
    ]
    return tf.concat([tf.reshape(t, [1, -1]) for t in (*means, *own_variances, share)], 1)


def combined(gathered: tf.Tensor, found: Sequence[Moments]) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns the means and variances over all rows, in the shapes that the operations give.

    Args:
      gathered: the `own_moments` of the workers that have rows, one row each.
    """
    sizes = [m.mean.outputs[0].shape.num_elements() for m in found]
    means, own_variances, shares = tf.split(gathered, [sum(sizes), sum(sizes), 1], 1)
    about = tf.reduce_mean(means, 0)  # any number near to them will do
    deviations = means - about
    deviation = tf.reduce_sum(shares * deviations, 0)
    squares = own_variances + tf.math.squared_difference(deviations, deviation)
    whole = (about + deviation, tf.reduce_sum(shares * squares, 0))
    return [
        (tf.reshape(mean, m.mean.outputs[0].shape), tf.reshape(own, m.variance.outputs[0].shape))
        for m, mean, own in zip(found, *(tf.split(t, sizes) for t in whole), strict=True)
    ]
