"""A partitioned step whose sums have the same bits whichever worker computes a micro-batch.

The sums follow a fixed tree (`tree_sum.py`). The workers exchange the nodes that they compute.

`enable_op_determinism` sets TensorFlow so that an operation gives the same bits in every process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.patches import replaced
from hvd_elastic_keras.keras_internals.tensorflow_names import framework_config
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.step.partition import plan
from hvd_elastic_keras.step.partition.collectives import WorkerCollectives
from hvd_elastic_keras.step.partition.one_round import (
    SUM,
    Known,
    NotOneRoundError,
    OneRound,
    needs_rows,
    results_of,
)
from hvd_elastic_keras.step.partition.plan import Planned
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.pieces import PieceGraph, given_by_pieces
from hvd_elastic_keras.step.tree_sum import Nodes, TreeSum, sum_of_nodes
from hvd_elastic_keras.step.worker_rows import Place

NOT_ONE_ROUND = (
    "--deterministic was given, but the step of this model needs more than one round of "
    "collectives, or rows after it: {}. Expected a step whose only collective is the sum of what "
    "micro-batches give. Leave --deterministic out, or what needs the whole batch in the step."
)

NO_NODE = -1
PLACE = 2
"""Entries at the front of a row: level and index."""
WHOLE_BYTES = 2**20
"""The most bytes of whole vectors that a worker receives, if each worker has one node."""


class DeterministicStep(PartitionedStep):
    """A `PartitionedStep` that adds up by the binary tree of `tree_sum.py`.

    A micro-batch is a leaf: its contribution to the sums is one vector. Instead of an allreduce,
    workers exchange nodes of the tree with their places in it. The tail, with the count of examples
    and the flags, travels along.
    """

    def _with_others(self, planned: Planned, flat: Any, numbers: tf.Tensor) -> Any:
        analysis = self.analysis  # before a graph is traced that needs it
        if planned.analysis.most_rows is None:  # each worker computes all of it
            return self._graph_of(planned)(flat, numbers)
        try:
            return self._graph_in_pieces(flat, numbers)
        except NotOneRoundError as error:
            rounds = "; ".join(analysis.lines()[1:4])
            raise ConfigurationError(NOT_ONE_ROUND.format(rounds)) from error

    @property
    def _has_own(self) -> bool:
        return False

    def _check_pieces(self) -> None:
        """Does nothing: each micro-batch may call Python code, and `told` says so."""

    @property
    def told(self) -> tuple[str, ...]:
        """See `PartitionedStep`."""
        python = [plan.FOR_EACH_MICRO_BATCH] if self.calls_python else []
        return plan.listed([super().told, python])

    def _tracing(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which TensorFlow makes its usual operations if there is no GPU.

        On CPUs, their bits are always the same. TensorFlow's deterministic operations for losses of
        classes add up, over the whole batch, values that belong to one row. Sums of micro-batches
        would not work there.
        """
        if tf.config.list_physical_devices("GPU"):
            return contextlib.nullcontext()
        return replaced(framework_config, "is_op_determinism_enabled", lambda _: False)

    def _in_pieces(self, data: Any, numbers: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        self._check_pieces()
        place = self.place(numbers)
        began = self.tail.began()
        rows = self._rows(data, place, began)
        known = Known(*self._exchanged(rows, place, began))
        step = self._partial(place, known, began)
        outputs = step.compute(rows, place.step)
        if needs_rows(step, outputs, rows, known, but_shapes=True):
            raise NotOneRoundError
        return self.finished(step, outputs, place, known)

    def sums_of_all(
        self, data: Sequence[Any], numbers: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """See `PartitionedStep`."""
        place = self.place(numbers)
        began = self.tail.began()
        results, tail = self._exchanged(self._rows(data, place, began), place, began)
        with tf.control_dependencies(self.tail.agreed(tail, place)):
            return [tf.identity(t) for t in results], tf.identity(tail)

    def _exchanged(
        self, rows: Sequence[Any], place: Place, began: tf.Tensor | None
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the results of the collectives, and the sum of the tails."""
        graph = PieceGraph(OneRound(self.captured, self.analysis), self._batch.flat_spec)
        tree = _Leaves(graph, place)
        given = given_by_pieces(graph, rows, place.pieces(1), tree)
        tail = self.tail.of([g.tensor for g in given], place, began)
        has_others = self._has_others
        vector, tail = tf.cond(
            has_others,
            lambda: self._over_workers(tree, tail),
            lambda: [tree.total(), tail],
        )
        others = WorkerCollectives(self._collectives, place.has_rows, has_others)
        sums = iter(tree.split(vector))
        rest = iter(results_of([g for g in given if g.kind != SUM], others, self._name))
        return [next(sums if g.kind == SUM else rest) for g in given], tail

    def _over_workers(self, tree: _Leaves, tail: tf.Tensor) -> list[tf.Tensor]:
        workers = self.world.num_workers.read_value()
        name = f"{self._name}.nodes"
        return sum_over_workers(tree.vectors(), tree.nodes, tail, workers, name)


class _Leaves:
    """The sums over the micro-batches of a worker, as nodes of the tree.

    Used in place of `RunningSums`.
    """

    def __init__(self, graph: PieceGraph, place: Place) -> None:
        self._specs = [spec for kind, spec in graph.specs if kind == SUM]
        self._sizes = [int(s.shape.num_elements()) for s in self._specs]
        wide = any(s.dtype == tf.float64 or s.dtype.is_integer for s in self._specs)
        self._dtype = tf.float64 if wide else tf.float32
        self._first = place.first_piece
        count = tf.where(place.has_rows, tf.size(place.offsets, tf.int64) - 1, 0)
        self._last = self._first + count
        self._tree = self._of(None)

    def _of(self, array: Any) -> TreeSum:
        return TreeSum(sum(self._sizes), self._dtype, self._first, array)

    @property
    def nodes(self) -> Nodes:
        """The nodes that the worker has."""
        return Nodes.of_range(self._first, self._last)

    def vectors(self) -> tf.Tensor:
        """Returns the vectors of these nodes."""
        return self._tree.vectors(self.nodes)

    def total(self) -> tf.Tensor:
        """Returns the sum, for a worker that has all leaves."""
        return self._tree.total(self._last)

    def start(self) -> Any:
        """See `RunningSums`."""
        return self._tree.array

    def shapes(self) -> Any:
        """See `RunningSums`."""
        return tf.TensorShape(None)

    def add(self, i: Any, array: Any, found: Sequence[tf.Tensor]) -> Any:
        """See `RunningSums`."""
        grown = self._of(array)
        flat = [tf.cast(tf.reshape(t, [-1]), self._dtype) for t in found]
        leaf = self._first + tf.cast(i, tf.int64)
        grown.add(tf.concat(flat, 0), tf.constant(0, tf.int64), leaf)
        return grown.array

    def end(self, array: Any) -> list[tf.Tensor]:
        """See `RunningSums`. Returns zeros: the real sums come after the exchange."""
        self._tree = self._of(array)
        return [tf.zeros(s.shape, s.dtype) for s in self._specs]

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Splits a sum over all leaves into its tensors."""
        parts = tf.split(vector, self._sizes)
        return [
            tf.cast(tf.reshape(p, s.shape), s.dtype)
            for p, s in zip(parts, self._specs, strict=True)
        ]


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


def enable_op_determinism() -> None:
    """Fixes the number of threads of an operation and turns TensorFlow's op determinism on.

    The number of threads that share an operation decides the order of its additions. So the job
    sets this number (`RunOptions.deterministic_threads`), not the machine. Both settings hold for
    the whole process and cannot be undone. It is best to call this before TensorFlow
    computes anything.

    Raises:
      ConfigurationError: TensorFlow has started already, with another number of threads.
    """
    wanted = env.run_options().deterministic_threads
    if tf.config.threading.get_intra_op_parallelism_threads() != wanted:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(wanted)
        except RuntimeError as error:
            _check_threads(wanted, error)
    tf.config.experimental.enable_op_determinism()


def _check_threads(wanted: int, error: RuntimeError) -> None:
    """Raises if TensorFlow has started with another number of threads."""
    configured = tf.config.threading.get_intra_op_parallelism_threads()
    started_with = configured or env.intra_op_threads() or os.cpu_count()
    if started_with != wanted:
        raise ConfigurationError(
            f"TensorFlow has started with {started_with} threads per operation, but "
            f"deterministic training needs {wanted}: the order of additions, and so the bits of "
            f"the weights, depend on it. Set TF_NUM_INTRAOP_THREADS={wanted} in the environment, "
            "as `python -m hvd_elastic_keras.run --deterministic` does, or call "
            f"tf.config.threading.set_intra_op_parallelism_threads({wanted}) at the top of the "
            "script."
        ) from error
