"""Lets each worker have the sum over the nodes of all workers (`tree_sum.py`).

Each worker owns a slice of the vector. It receives that slice of all nodes (alltoall), adds them
up in the tree's order, and hands its sums to everybody (allgather). With N workers whose shares are
one node each, a worker receives 2 (N - 1) / N vectors, as with a ring allreduce, however many there
are. Short vectors go to everybody as they are, in one collective: there the wait for one counts.

What travels is one row for each node: its level, its index, entries of the worker's tail (in
its first row, else zeros), and the slice. A worker without nodes sends a row of level -1.
"""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.step.tree_sum import Nodes, sum_of_nodes

NO_NODE = -1
PLACE = 2
"""Entries at the front of a row: level and index."""
WHOLE_BYTES = 2**20
"""So much, at most, is received of whole vectors if each worker has one node."""


def sum_over_workers(
    vectors: tf.Tensor, nodes: Nodes, tail: tf.Tensor, num_workers: tf.Tensor, name: str
) -> list[tf.Tensor]:
    """The sum over all leaves, and that of the tails; both the same on every worker.

    Where nodes are missing, because a worker has stopped, the sum over the leaves is zero.

    Args:
      vectors: shape [nodes, size], float32 or float64: this worker's.
      nodes: where they are in the tree.
      tail: shape [n], whole numbers up to 2**24 or numbers that only one worker has.
      num_workers: of the round, int32; at least 2.
      name: of the collectives.

    Returns:
      Shapes [size] and [n].
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
    """Shape [rows, PLACE + n]. The whole numbers are exact in float32."""
    places = tf.stack([nodes.levels, nodes.indices], 1)
    missing = tf.maximum(1 - tf.shape(places)[0], 0)
    places = tf.pad(places, [[0, missing], [0, 0]], constant_values=NO_NODE)
    tails = tf.pad(tail[None], [[0, tf.shape(places)[0] - 1], [0, 0]])
    return tf.concat([tf.cast(places, dtype), tf.cast(tails, dtype)], 1)


def _whole(heads: tf.Tensor, vectors: tf.Tensor, name: str) -> list[tf.Tensor]:
    # A group, for which Horovod's next cycle begins at once; see scripts/horovod_patch.py.
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
    # With what is before the slices, lest they are copied.
    own = sum_of_nodes(received, _nodes_at(received))[head:]
    total = hvd.allgather(own, name=f"{name}.sums", ignore_name_scope=True)
    return [total, tf.reduce_sum(received[:, PLACE:head], 0)]


def _nodes_at(rows: tf.Tensor) -> Nodes:
    """Which nodes these rows belong to."""
    places = tf.cast(rows[:, :PLACE], tf.int64)
    return Nodes(places[:, 0], places[:, 1])
