"""Computations whose rows depend on rows of the same micro-batch, and on no others.

In a graph, each of them is one operation, which is computed from the rows of any number of whole
micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.step.partition.operations.dimensions import Dims, Sizes, is_rows, static
from hvd_elastic_keras.step.partition.operations.states import Decision, View, sharded

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
