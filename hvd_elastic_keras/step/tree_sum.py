"""Sums of micro-batches in an order that does not depend on which workers computed them.

The micro-batches of a step are the leaves 0, 1, 2, … of a binary tree. The node (level, index) is
the sum of the leaves [index * 2**level, (index + 1) * 2**level). It is computed as the sum of its
left half plus the sum of its right half. The sum over any number of leaves is

    largest node + (next largest node + (… + smallest node))

over the nodes that make up the leaves: 7 leaves are (2, 0) + ((1, 2) + (0, 6)). So the additions
follow from the number of leaves alone. A worker with the leaves [first, last) does all additions
whose leaves are all its own. It passes on the nodes that are left, at most two of each level. A
worker that has all nodes does the remaining additions. Every addition has the same operands,
whichever worker does it, so that its bits are the same.

Nodes are kept in a `tf.TensorArray`, as in a binary counter: at most two nodes of a level are alive
at any time. A left child lies at 2 * level, a right child at 2 * level + 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

LEVELS = 21
"""Levels of a tree with 2**20 leaves, the most micro-batches of a step."""


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The largest nodes that make up a range of leaves, in the order of the leaves.

    Attributes:
      levels, indices: places of the nodes in the tree; shape [nodes], int64.
    """

    levels: tf.Tensor
    indices: tf.Tensor

    @classmethod
    def of_range(cls, first: tf.Tensor, last: tf.Tensor) -> Nodes:
        """Returns the nodes of the leaves [first, last), int64 numbers."""
        levels = tf.range(LEVELS, dtype=tf.int64)
        shift_right, shift_left = tf.bitwise.right_shift, tf.bitwise.left_shift
        # A right child at the front, whose left sibling begins before the range: at most one of a
        # level. Its index is first / 2**level, rounded up.
        front = -shift_right(-first * tf.ones_like(levels), levels)
        is_front = (front % 2 == 1) & (shift_left(front + 1, levels) <= last)
        # A left child at the end, whose right sibling ends after the range.
        end = shift_right(last * tf.ones_like(levels), levels) - 1
        is_end = (end % 2 == 0) & (shift_left(end, levels) >= first)

        def both(of_front: tf.Tensor, of_end: tf.Tensor) -> tf.Tensor:
            # Nodes grow from the front to the middle and shrink from there to the end.
            kept = (tf.boolean_mask(of_front, is_front), tf.boolean_mask(of_end, is_end)[::-1])
            return tf.concat(kept, 0)

        return cls(both(levels, levels), both(front, end))

    @property
    def first_leaves(self) -> tf.Tensor:
        """The first leaf of each node."""
        return tf.bitwise.left_shift(self.indices, self.levels)

    @property
    def places(self) -> tf.Tensor:
        """The position of each node in the array."""
        return tf.cast(2 * self.levels + self.indices % 2, tf.int32)


class TreeSum:
    """Nodes of the tree over a growing range of leaves.

    Args:
      size: entries of each summand, a vector; a tensor if only the running graph knows the size.
      dtype: type of the entries.
      first: the leaf at which the range begins.
      array: the nodes so far, as the property `array` returns them; None: there are none.
    """

    def __init__(
        self, size: int | tf.Tensor, dtype: tf.DType, first: tf.Tensor, array: Any = None
    ) -> None:
        self.size = size
        self._dtype = dtype
        self._first = tf.cast(first, tf.int64)
        self._nodes = (
            tf.TensorArray(
                dtype,
                size=2 * LEVELS,
                element_shape=[size if isinstance(size, int) else None],
                clear_after_read=False,
            )
            if array is None
            else array
        )

    @property
    def array(self) -> Any:
        """The nodes, in a form that `tf.while_loop` passes from turn to turn."""
        return self._nodes

    def with_array(self, array: Any) -> TreeSum:
        """Returns the same range with other nodes, as the property `array` returned them."""
        return TreeSum(self.size, self._dtype, self._first, array)

    def add(self, vector: tf.Tensor, level: tf.Tensor, index: tf.Tensor) -> None:
        """Adds the next node of the range, and does all additions that it completes."""

        def completes(level: tf.Tensor, index: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            sibling_begins = tf.bitwise.left_shift(index - 1, level)
            return (index % 2 == 1) & (sibling_begins >= self._first)

        def complete(level: tf.Tensor, index: tf.Tensor, right: tf.Tensor) -> list[tf.Tensor]:
            left = self._nodes.read(tf.cast(2 * level, tf.int32))
            return [level + 1, index // 2, left + right]

        start = [tf.cast(level, tf.int64), tf.cast(index, tf.int64), vector]
        level, index, vector = tf.while_loop(completes, complete, start, parallel_iterations=1)
        self._nodes = self._nodes.write(tf.cast(2 * level + index % 2, tf.int32), vector)

    def vectors(self, nodes: Nodes) -> tf.Tensor:
        """Returns the vectors of some nodes of the range, shape [nodes, size]."""
        # If there are no nodes, eager gathering loses the size.
        return tf.reshape(self._nodes.gather(nodes.places), [tf.size(nodes.places), self.size])

    def total(self, last: tf.Tensor) -> tf.Tensor:
        """Returns the sum over the leaves [0, last), shape [size].

        All nodes of these leaves have to be added before. The sum is zero if `last` is zero.
        """
        places = Nodes.of_range(tf.constant(0, tf.int64), last).places
        count = tf.size(places)

        def add_larger(i: tf.Tensor, rest: tf.Tensor) -> list[tf.Tensor]:
            return [i - 1, self._nodes.read(places[i]) + rest]

        def add_all() -> tf.Tensor:
            start = [count - 2, self._nodes.read(places[count - 1])]
            return tf.while_loop(lambda i, _: i >= 0, add_larger, start, parallel_iterations=1)[1]

        # A warm-up may have no micro-batch.
        return tf.cond(count > 0, add_all, lambda: tf.zeros([self.size], self._dtype))


def sum_of_nodes(vectors: tf.Tensor, nodes: Nodes) -> tf.Tensor:
    """Returns the sum over all leaves from 0 on, given their nodes in any order.

    The sum is zero if a node is missing between leaf 0 and the last leaf given.

    Args:
      vectors: the nodes' sums, shape [nodes, size].
      nodes: places of the nodes; nodes with a negative level do not count.
    """
    size = vectors.shape[1] if vectors.shape[1] is not None else tf.shape(vectors)[1]
    form = (size, vectors.dtype, tf.constant(0, tf.int64))
    order = tf.argsort(nodes.first_leaves)
    order = tf.boolean_mask(order, tf.gather(nodes.levels, order) >= 0)
    levels, indices = tf.gather(nodes.levels, order), tf.gather(nodes.indices, order)
    leaves = tf.bitwise.left_shift(tf.ones_like(levels), levels)
    last = tf.reduce_sum(leaves)

    def add(i: tf.Tensor, array: Any) -> list[Any]:
        tree = TreeSum(*form, array)
        tree.add(vectors[order[i]], levels[i], indices[i])
        return [i + 1, tree.array]

    def add_all() -> tf.Tensor:
        (array,) = loop(tf.size(order), add, [TreeSum(*form).array])
        return TreeSum(*form, array).total(last)

    follow_one_another = tf.reduce_all(indices * leaves == tf.math.cumsum(leaves, exclusive=True))
    return tf.cond(follow_one_another, add_all, lambda: tf.zeros([size], vectors.dtype))


def loop(count: tf.Tensor, body: Callable[..., Any], values: list[Any]) -> list[Any]:
    """Calls `body(i, *values)` for i in [0, count), strictly one after the other."""
    start = [tf.constant(0), *values]
    _, *result = tf.while_loop(lambda i, *_: i < count, body, start, parallel_iterations=1)
    return list(result)
