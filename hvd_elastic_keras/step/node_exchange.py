"""Gives each worker the sum over the nodes of all workers (`tree_sum.py`).

Each worker owns a slice of the vector. It receives that slice of all nodes (alltoall), adds the
slices up in the tree's order, and sends its sums to all workers (allgather). With N workers whose
shares are one node each, a worker receives 2 (N - 1) / N vectors. This is the same as with a ring
allreduce, for any N. Short vectors go to all workers whole, in one collective: for them, the time
spent waiting for a collective counts.

Each node travels as one row: its level, its index, the worker's tail (in the worker's first row,
else zeros), and the slice. A worker without nodes sends a row of level -1.
"""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.step.tree_sum import Nodes, sum_of_nodes

NO_NODE = -1
PLACE = 2
"""Entries at the front of a row: level and index."""
WHOLE_BYTES = 2**20
"""The most bytes of whole vectors that a worker receives, if each worker has one node."""


def sum_over_workers(
    vectors: tf.Tensor, nodes: Nodes, tail: tf.Tensor, num_workers: tf.Tensor, name: str
) -> list[tf.Tensor]:
    """Returns the sum over all leaves and the sum of the tails; both are the same on all workers.

    If a worker has stopped, its nodes are missing. The sum over the leaves is then zero, unless
    only the last nodes are missing.

    Args:
      vectors: this worker's nodes, shape [nodes, size], float32 or float64.
      nodes: places of these nodes in the tree.
      tail: shape [n], whole numbers up to 2**24 or numbers that only one worker has.
      num_workers: number of workers in the round, int32; at least 2.
      name: beginning of the names of the collectives.

    Returns:
      Two tensors, of shapes [size] and [n].
    """
    size = int(vectors.shape[1])
    heads = _heads(nodes, tail, vectors.dtype)
    vectors = tf.pad(vectors, [[0, tf.shape(heads)[0] - tf.shape(vectors)[0]], [0, 0]])
    received = (num_workers - 1) * size * vectors.dtype.size
    total, tails = tf.cond(
        received > WHOLE_BYTES,
        lambda: _in_slices(heads, vectors, num_workers, name),
        lambda: _whole(heads, vectors, name),
    )
    return [
        tf.ensure_shape(total[:size], [size]),
        tf.cast(tf.ensure_shape(tails, tail.shape), tail.dtype),
    ]


def _heads(nodes: Nodes, tail: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the fronts of the rows, shape [rows, PLACE + n].

    Whole numbers are exact in float32.
    """
    places = tf.stack([nodes.levels, nodes.indices], 1)
    missing = tf.maximum(1 - tf.shape(places)[0], 0)
    places = tf.pad(places, [[0, missing], [0, 0]], constant_values=NO_NODE)
    tails = tf.pad(tail[None], [[0, tf.shape(places)[0] - 1], [0, 0]])
    return tf.concat([tf.cast(places, dtype), tf.cast(tails, dtype)], 1)


def _whole(heads: tf.Tensor, vectors: tf.Tensor, name: str) -> list[tf.Tensor]:
    # Horovod's next cycle begins at once for a group; see scripts/horovod_patch.py.
    heads, vectors = hvd.grouped_allgather(
        [heads, vectors], name=f"{name}.nodes", ignore_name_scope=True
    )
    return [sum_of_nodes(vectors, _nodes_at(heads)), tf.reduce_sum(heads[:, PLACE:], 0)]


def _in_slices(
    heads: tf.Tensor, vectors: tf.Tensor, num_workers: tf.Tensor, name: str
) -> list[tf.Tensor]:
    count, size = tf.shape(vectors)[0], int(vectors.shape[1])
    width = (size + num_workers - 1) // num_workers
    vectors = tf.pad(vectors, [[0, 0], [0, num_workers * width - size]])
    slices = tf.transpose(tf.reshape(vectors, [count, num_workers, width]), [1, 0, 2])
    copies = tf.tile(heads[None], [num_workers, 1, 1])
    rows = tf.reshape(tf.concat([copies, slices], 2), [num_workers * count, -1])
    to_each = tf.fill([num_workers], count)
    received, _ = hvd.alltoall(rows, to_each, name=f"{name}.slices", ignore_name_scope=True)
    head = heads.shape[1]
    # The fronts of the rows are summed, too: to cut them off first would copy the slices.
    own = sum_of_nodes(received, _nodes_at(received))[head:]
    total = hvd.allgather(own, name=f"{name}.sums", ignore_name_scope=True)
    return [total, tf.reduce_sum(received[:, PLACE:head], 0)]


def _nodes_at(rows: tf.Tensor) -> Nodes:
    """Returns the nodes that these rows belong to."""
    places = tf.cast(rows[:, :PLACE], tf.int64)
    return Nodes(places[:, 0], places[:, 1])
