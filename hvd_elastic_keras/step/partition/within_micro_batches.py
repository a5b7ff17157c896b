"""Computations whose rows depend on rows of the same micro-batch, and on no others.

In a graph, each of them is one operation, which is computed from the rows of any number of whole
micro-batches.

`over_micro_batches` does this for batch normalisation: over each micro-batch by itself, in a step
over a whole batch. The result of a row depends on all rows of its micro-batch. One worker has all
of these, so that no collective is needed. The result depends on how the batch is cut, and not on
which worker computes it. (Horovod and others normalise over the rows of a worker. These change with
the number of workers.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.common.patches import replaced
from hvd_elastic_keras.step.partition.rules.dimensions import Dims, is_rows, static
from hvd_elastic_keras.step.partition.rules.sizes import Sizes
from hvd_elastic_keras.step.partition.rules.states import Decision, View, sharded

MARK = "within_micro_batches"
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def within_micro_batches(
    function: Callable[..., list[tf.Tensor]],
) -> Callable[..., list[tf.Tensor]]:
    """Makes each call of a function one operation. Tensors of equal forms share one trace.

    Args:
      function: receives tensors with the rows of the batch, or several entries for each row, along
        their first axis. The second tensor holds the numbers of the micro-batches. The function
        returns tensors with as many rows as the first tensor. Each of these rows follows from the
        rows of the same micro-batch alone.
    """

    def elastic_within_micro_batches(*given: tf.Tensor) -> list[tf.Tensor]:
        return function(*given)

    made = tf.function(elastic_within_micro_batches, autograph=False)

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
        with tf.init_scope():  # the trace belongs to no step
            graph = made.get_concrete_function(*specs)
        # Do not call `made(...)`: it would be traced as a part of the step.
        return list(graph(*tensors))

    return call


def is_within(op: Any) -> bool:
    """Whether an operation is a call made by `within_micro_batches`."""
    return op.type in CALLS and MARK in op.get_attr("f").name


def decision(view: View) -> Decision:
    """Every worker computes the call from its own rows, which are whole micro-batches."""
    if all(s == sharded(0) for s in view.ins):
        return Decision(view.ins, (sharded(0),) * len(view.op.outputs))
    return view.replicated("it is not computed of rows along the first axis")


def give_sizes(op: Any, sizes: Sizes) -> None:
    """Notes the number of rows of the results, which TensorFlow does not know."""
    first = sizes.dims[op.inputs[0].name]
    rows = first[0] if first and is_rows(first[0]) else None
    for tensor in op.outputs:
        known: Dims = static(tensor.shape)
        sizes.give(tensor, (rows, *known[1:]) if known else known)


@contextlib.contextmanager
def over_micro_batches(numbers: tf.Tensor) -> Iterator[None]:
    """Makes layers that train normalise each micro-batch by itself, while this lasts.

    Layers with a mask, with renormalisation or with `synchronized` normalise over the whole batch.

    Args:
      numbers: the number of the micro-batch of each row, shape [rows], in ascending order.
    """

    def call(
        original: Callable[..., Any],
        layer: Any,
        inputs: Any,
        training: Any = None,
        mask: Any = None,
    ) -> Any:
        examples_first = layer.axis % len(inputs.shape) != 0
        over_whole_batch = mask is not None or layer.renorm or layer.synchronized
        if not (training and layer.trainable and examples_first) or over_whole_batch:
            return original(layer, inputs, training=training, mask=mask)
        return _called(numbers, layer, inputs)

    with replaced(keras.layers.BatchNormalization, "call", call):
        yield


def _called(numbers: tf.Tensor, layer: keras.layers.BatchNormalization, inputs: Any) -> Any:
    # In float32 or wider, as in Keras: half precision overflows here.
    values = keras.ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    axis = layer.axis % len(inputs.shape)
    outputs, *moments = _normalised(values, numbers, axis, layer.epsilon)
    for average, of_rows in zip((layer.moving_mean, layer.moving_variance), moments, strict=True):
        moved = tf.reshape(tf.reduce_mean(tf.stop_gradient(of_rows), 0), average.shape)
        average.assign(
            keras.ops.cast(average, values.dtype) * layer.momentum + moved * (1.0 - layer.momentum)
        )
    shape = [1] * len(inputs.shape)
    shape[axis] = inputs.shape[axis]
    if layer.gamma is not None:
        outputs *= tf.reshape(keras.ops.cast(layer.gamma, values.dtype), shape)
    if layer.beta is not None:
        outputs += tf.reshape(keras.ops.cast(layer.beta, values.dtype), shape)
    return keras.ops.cast(outputs, layer.compute_dtype)


def _normalised(
    values: tf.Tensor, numbers: tf.Tensor, axis: int, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns values with mean 0 and variance 1 in each micro-batch.

    Also returns, for each row, the mean and the variance of its micro-batch. The gradient follows
    Ioffe and Szegedy, "Batch Normalization", 2015.
    """
    within = tuple(i for i in range(1, len(values.shape)) if i != axis)
    forward, backward = _both_ways(within, epsilon)

    def normalised(values: tf.Tensor) -> tuple[Sequence[tf.Tensor], Callable[..., Any]]:
        found, mean, variance, inverse = forward(values, numbers)

        def gradients(of_found: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
            return backward(of_found, numbers, found, inverse)[0]

        return (found, mean, variance), gradients

    found, mean, variance = tf.custom_gradient(normalised)(values)
    return found, mean, variance


@functools.cache
def _both_ways(within: tuple[int, ...], epsilon: float) -> tuple[Callable[..., Any], ...]:
    """Returns two functions for all layers of this form: one normalises, one gives the gradient."""

    @within_micro_batches
    def forward(values: tf.Tensor, numbers: tf.Tensor) -> list[tf.Tensor]:
        each = _MicroBatches.of(values, numbers)
        mean = each.mean(values, within)
        variance = each.mean(tf.math.squared_difference(values, mean), within)
        inverse = tf.math.rsqrt(variance + epsilon)
        return [(values - mean) * inverse, mean, variance, inverse]

    @within_micro_batches
    def backward(
        gradient: tf.Tensor, numbers: tf.Tensor, normalised: tf.Tensor, inverse: tf.Tensor
    ) -> list[tf.Tensor]:
        each = _MicroBatches.of(gradient, numbers)
        mean = each.mean(gradient, within)
        slope = each.mean(gradient * normalised, within)
        return [inverse * (gradient - mean - normalised * slope)]

    return forward, backward


@dataclasses.dataclass(frozen=True)
class _MicroBatches:
    """The micro-batches to which rows belong.

    Attributes:
      segments: the number of the micro-batch of each row, from 0, shape [rows].
      counts: the number of rows of each micro-batch, shape [rows, 1, …]. There are fewer
        micro-batches than rows, but XLA has to know the number of segments. The rest is 0.
    """

    segments: tf.Tensor
    counts: tf.Tensor

    @classmethod
    def of(cls, values: tf.Tensor, numbers: tf.Tensor) -> _MicroBatches:
        """Returns the micro-batches of rows.

        Args:
          numbers: see `over_micro_batches`. A layer may see several rows for each row of the batch.
        """
        rows = tf.shape(values)[0]
        each = rows // tf.shape(numbers)[0]
        segments = tf.gather(numbers - numbers[0], tf.range(rows) // each)
        ones = tf.ones([rows, *[1] * (len(values.shape) - 1)], values.dtype)
        return cls(segments, tf.math.unsorted_segment_sum(ones, segments, rows))

    def mean(self, values: tf.Tensor, within: Sequence[int]) -> tf.Tensor:
        """Returns, for each row, the mean over its micro-batch, shape [rows, 1, …].

        Args:
          within: further axes over which the mean is taken.
        """
        of_rows = tf.reduce_mean(values, within, keepdims=True) if within else values
        sums = tf.math.unsorted_segment_sum(of_rows, self.segments, tf.shape(self.counts)[0])
        return tf.gather(tf.math.divide_no_nan(sums, self.counts), self.segments)
