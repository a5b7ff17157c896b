"""A worker's contribution to the collectives of a step, computed in pieces of its rows.

One piece at a time is in memory. Each piece is computed like the rows of a separate worker. The
contributions of the pieces are then added up, concatenated, or compared, as the collective would
do.

`TogetherLimit` limits the micro-batches that are computed in one pass; it falls when memory runs
out. One pass holds the activations of all its micro-batches. Only a pass that runs out of memory
shows that they do not fit: shares grow when workers leave, and sequences differ in length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import tensorflow as tf

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.data.examples.structure import rows_of
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.step.partition.collectives import neutral
from hvd_elastic_keras.step.partition.one_round import (
    EXTREMES,
    ROWS,
    SUM,
    Given,
    NotOneRoundError,
    OneRound,
)
from hvd_elastic_keras.step.partition.part import Part

Tensors = list[tf.Tensor]
LARGE_BYTES = 2**18
"""A sum of at least this size is worth two more operations in each turn of the loop."""

T = TypeVar("T")
UNLIMITED = 2**30


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of a worker's rows.

    Attributes:
      part: all rows of the worker; at least one row.
      bounds: shape [pieces + 1], int32, at least one piece: piece i has the rows
        [bounds[i], bounds[i + 1]) of this worker.
      step: number of the step.
    """

    part: Part
    bounds: tf.Tensor
    step: tf.Tensor

    @property
    def count(self) -> tf.Tensor:
        """Number of pieces."""
        return tf.size(self.bounds) - 1


class PieceGraph:
    """The graph of one piece, traced once.

    Args:
      specs: specs of the rows.

    Raises:
      NotOneRoundError: the step cannot be computed in pieces.
    """

    def __init__(self, one_round: OneRound, specs: Sequence[Any]) -> None:
        self._given: list[Given] = []

        def compute(
            rows: Any, numbers: tf.Tensor, is_first: tf.Tensor, step: tf.Tensor
        ) -> list[tf.Tensor]:
            low, size, total, has_rows = tf.unstack(numbers)
            part = Part(low, size, total, is_first, tf.cast(has_rows, tf.bool))
            self._given = one_round.before(rows, part, step)
            return [g.tensor for g in self._given]

        signature = [
            specs,
            tf.TensorSpec([4], tf.int32),
            tf.TensorSpec([], tf.bool),
            tf.TensorSpec([], tf.int64),
        ]
        self._per_row = [leaf.per_row for leaf in one_round.leaves]
        function = tf.function(compute, input_signature=signature, autograph=False)
        self._function = function.get_concrete_function()
        self.specs = [(g.kind, tf.TensorSpec(g.tensor.shape, g.tensor.dtype)) for g in self._given]
        if any(kind != ROWS and not spec.shape.is_fully_defined() for kind, spec in self.specs):
            raise NotOneRoundError

    def __call__(self, rows: Sequence[Any], pieces: Pieces, i: Any) -> list[tf.Tensor]:
        """Returns the contribution of piece `i`."""
        low, high = pieces.bounds[i], pieces.bounds[i + 1]
        part = pieces.part
        has_rows = tf.cast(part.has_rows, tf.int32)
        numbers = tf.stack([part.low + low, high - low, part.total, has_rows])
        is_first = tf.logical_and(part.is_first, tf.equal(i, 0))
        leaves = zip(rows, self._per_row, strict=True)
        own = [rows_of(r, low, high, entries) for r, entries in leaves]
        found = self._function(own, numbers, is_first, pieces.step)
        return list(found)


class Sums(Protocol):
    """Sums over pieces, as variables of a loop; see `RunningSums`."""

    def start(self) -> Any:
        """Returns the sums before the first piece."""

    def shapes(self) -> Any:
        """Returns the shapes of the sums, as far as they are known in the loop."""

    def add(self, i: Any, sums: Any, results: Sequence[tf.Tensor]) -> Any:
        """Returns the sums after piece `i`."""

    def end(self, sums: Any) -> list[tf.Tensor]:
        """Returns the sums after the last piece."""


def given_by_pieces(
    graph: PieceGraph, rows: Sequence[Any], pieces: Pieces, running: Sums | None = None
) -> list[Given]:
    """Returns the contribution of all pieces together.

    Args:
      running: adds up the sums; None: adds them up in the order of the pieces.
    """
    places = {k: [i for i, (kind, _) in enumerate(graph.specs) if kind == k] for k in (SUM, ROWS)}
    others = [i for i, (kind, _) in enumerate(graph.specs) if kind in EXTREMES]
    specs = [spec for _, spec in graph.specs]
    running = running or RunningSums([specs[i] for i in places[SUM]], pieces.count)
    lists = [
        tf.TensorArray(
            specs[i].dtype, pieces.count, infer_shape=False, element_shape=specs[i].shape
        )
        for i in places[ROWS]
    ]
    extremes = [
        tf.cast(tf.fill(specs[i].shape, neutral(specs[i].dtype, graph.specs[i][0])), specs[i].dtype)
        for i in others
    ]

    def body(i: Any, sums: Any, lists: Any, extremes: Any) -> tuple[Any, Any, Any, Any]:
        found = graph(rows, pieces, i)
        return (
            i + 1,
            running.add(i, sums, [found[j] for j in places[SUM]]),
            [a.write(i, found[j]) for a, j in zip(lists, places[ROWS], strict=True)],
            [
                EXTREMES[graph.specs[j][0]](e, found[j])
                for e, j in zip(extremes, others, strict=True)
            ],
        )

    _, sums, lists, extremes = tf.while_loop(
        lambda i, *_: i < pieces.count,
        body,
        (tf.constant(0), running.start(), lists, extremes),
        shape_invariants=(
            tf.TensorShape([]),
            running.shapes(),
            [tf.TensorShape(None) for _ in lists],
            [e.shape for e in extremes],
        ),
        parallel_iterations=1,
    )
    found = dict(zip(places[SUM], running.end(sums), strict=True))
    found |= {
        i: tf.ensure_shape(a.concat(), specs[i].shape)
        for a, i in zip(lists, places[ROWS], strict=True)
    }
    found |= dict(zip(others, extremes, strict=True))
    return [Given(kind, found[i]) for i, (kind, _) in enumerate(graph.specs)]


class RunningSums:
    """Adds up the results of micro-batches in a loop.

    A large sum begins as an empty tensor, and the first micro-batch's result replaces it. Otherwise
    zeros of the size of all gradients would have to be made, held and read in each step, mostly for
    a single pass.

    Args:
      specs: specs of the results, with static shapes. Empty: nothing is known of the results
        before the first micro-batch, as in an eager run.
      count: number of micro-batches, int32 of shape []; 0 for a worker without a share.
    """

    def __init__(self, specs: Sequence[tf.TensorSpec], count: Any) -> None:
        self._specs = specs
        self._is_large = [_num_bytes(spec) >= LARGE_BYTES for spec in specs]
        self._count = count

    def start(self) -> Tensors:
        """Returns the sums before the first micro-batch."""
        is_zero = tf.cast(tf.equal(self._count, 0), tf.int32)
        pairs = zip(self._specs, self._is_large, strict=True)
        return [
            tf.zeros(is_zero * spec.shape if large else spec.shape, spec.dtype)
            for spec, large in pairs
        ]

    def shapes(self) -> list[tf.TensorShape]:
        """Returns the shapes of the sums, as far as they are known in the loop."""
        pairs = zip(self._specs, self._is_large, strict=True)
        return [tf.TensorShape([None] * s.shape.rank if large else s.shape) for s, large in pairs]

    def add(self, i: Any, sums: Sequence[tf.Tensor], results: Sequence[tf.Tensor]) -> Tensors:
        """Returns the sums after one more micro-batch.

        Args:
          i: number of micro-batches before it.
        """
        if not self._specs:  # run eagerly: nothing is known before the first one
            return [s + r for s, r in zip(sums, results, strict=True)] if sums else list(results)
        is_first = tf.equal(i, 0)
        return [
            _first_or_sum(is_first, s, r) if large else s + r
            for large, s, r in zip(self._is_large, sums, results, strict=True)
        ]

    def end(self, sums: Sequence[tf.Tensor]) -> Tensors:
        """Returns the sums after the last micro-batch, with static shapes."""
        if not self._specs:
            return list(sums)
        return [tf.ensure_shape(s, spec.shape) for s, spec in zip(sums, self._specs, strict=True)]


def _first_or_sum(is_first: tf.Tensor, before: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
    return tf.cond(is_first, lambda: result, lambda: tf.ensure_shape(before, result.shape) + result)


def _num_bytes(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements()) * int(spec.dtype.size)


class TogetherLimit:
    """The most micro-batches in one pass; the limit is lowered when memory runs out.

    Args:
      most: the limit at the beginning; None: any number.
    """

    def __init__(self, most: int | None) -> None:
        self._most = UNLIMITED if most is None else most
        with tf.device("CPU:0"):
            self._read = tf.Variable(self._most, trainable=False, name="together_limit")

    @property
    def is_limited(self) -> bool:
        """Whether there may be more micro-batches than are computed in one pass."""
        return self._most < UNLIMITED

    def in_graph(self) -> tf.Tensor:
        """Returns the present limit, int32 of shape []."""
        return self._read.read_value()

    def run(
        self,
        step: Callable[[], T],
        micro_batches: int,
        *,
        computing: Callable[[], bool],
        repeatable: Callable[[], bool],
    ) -> T:
        """Takes a step, with fewer micro-batches in one pass if memory does not hold them all.

        Args:
          step: takes the step, with the limit that `in_graph` returns.
          micro_batches: number of micro-batches in this worker's share.
          computing: returns whether the micro-batches are still being computed. The rest of the
            step needs the same memory for any number of micro-batches in one pass.
          repeatable: returns whether the step can be taken again while the others wait. It can if
            nothing of it has been sent yet, and no other worker has seen it.

        Raises:
          tf.errors.ResourceExhaustedError: even one micro-batch is too large, or memory ran out
            after the micro-batches.
          CollectiveFailedError: memory ran out in a step that is not repeatable. From the next
            round on, a pass has one micro-batch.
        """
        while True:
            try:
                return step()
            except tf.errors.ResourceExhaustedError as error:
                had = min(micro_batches, self._most)
                if had <= 1 or not computing():
                    raise
                again = repeatable()
                self._lower(had, had // 2 if again else 1)
                if not again:
                    text = "memory ran out while this worker computed its part of a step"
                    raise CollectiveFailedError(text) from error

    def _lower(self, had: int, most: int) -> None:
        self._most = most
        self._read.assign(most)
        notices.tell(
            f"memory ran out with {had} micro-batches in one pass; from now on {most} "
            f"(--micro_batches_together={most} starts with that)"
        )
