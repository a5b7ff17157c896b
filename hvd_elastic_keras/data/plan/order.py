"""The order of an epoch: which example stands at which position. Pure functions of numbers.

Only `ListedOrder` keeps an order in memory. Any part of the other orders can be computed anywhere:
a restart at position n costs the same as a restart at position 0. This module knows no workers;
`partition.py` says which positions belong to which step and worker.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import tensorflow as tf

WINDOW_BLOCKS = 16
"""Number of blocks whose examples are mixed with each other, unless a source gives another one."""
ROUNDS = 4
"""Rounds of the cipher behind `index_shuffle`, which uses the same number."""


class ExampleOrder(Protocol):
    """Says which example stands at which position of an epoch."""

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """The examples at `positions`: shape [n], int64, n may be 0."""


@dataclasses.dataclass(frozen=True)
class ListedOrder:
    """An order that is kept in memory, because this package does not define its rule.

    Attributes:
      examples: shape [num_examples], int64, in their order.

    >>> ListedOrder(tf.constant([2, 0, 1], tf.int64)).indices(tf.constant([0, 2])).numpy().tolist()
    [2, 1]
    """

    examples: tf.Tensor

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """The examples at `positions`."""
        return tf.gather(self.examples, positions)


@dataclasses.dataclass(frozen=True)
class Order:
    """A permutation of the examples [0, num_examples) for each (seed, epoch).

    Without blocks, the permutation is `tf.random.experimental.index_shuffle` over all examples.
    Blocks are for storage that is slow unless neighbours are read together. The permutation then
    has two parts. First, blocks of `block_size` neighbours are permuted; the last block may be
    shorter. Then the examples of each `window_blocks` successive blocks are mixed. The examples of
    a window therefore come from only `window_blocks` places in the storage.

    Attributes:
      seed, epoch: these define the permutation. In a graph, the epoch may be a tensor (shape [],
        int64), but not with blocks.
      shuffle: whether to permute the examples; else the order is the order of the storage.
      block_size: neighbours that stay in the same window; 0 permutes all examples at once.

    Example, the examples of the first step of 32:

        >>> Order(1000, seed=1, epoch=0).indices(tf.range(32, dtype=tf.int64)).shape.as_list()
        [32]
    """

    num_examples: int
    seed: int
    epoch: int | tf.Tensor
    shuffle: bool = True
    block_size: int = 0
    window_blocks: int = WINDOW_BLOCKS

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """The examples at `positions`: shape [n], int64, n may be 0."""
        positions = tf.cast(positions, tf.int64)
        if not self.shuffle or self.num_examples <= 1:
            return positions
        # One more position is added and dropped again: index_shuffle refuses an empty list. A
        # worker without a part in the last step of an epoch has an empty list.
        padded = tf.pad(positions, [[0, 1]])
        return (self._blockwise(padded) if self.block_size else self._all(padded))[:-1]

    def _all(self, positions: tf.Tensor) -> tf.Tensor:
        return tf.random.experimental.index_shuffle(
            positions, seed=[self.seed, self.epoch], max_index=self.num_examples - 1
        )

    def _blockwise(self, positions: tf.Tensor) -> tf.Tensor:
        return self._in_blocks(self._in_windows(positions))

    def _in_windows(self, positions: tf.Tensor) -> tf.Tensor:
        """Mixes the positions of each window; the last window may be shorter."""
        size = tf.constant(self.block_size * self.window_blocks, tf.int64)
        window = positions // size
        start = window * size
        longest = tf.minimum(size, self.num_examples - start)
        same = tf.zeros_like(window)
        # This calls the raw operation: index_shuffle mishandles one seed per value (TensorFlow
        # 2.18-2.21).
        seeds = tf.stack([same, same + self.seed, self._draw(2) + window], axis=1)
        return start + tf.raw_ops.RandomIndexShuffle(
            index=positions - start, seed=seeds, max_index=longest - 1, rounds=ROUNDS
        )

    def _in_blocks(self, positions: tf.Tensor) -> tf.Tensor:
        """Permutes the blocks. The shorter last block goes to a place between the others."""
        size = tf.constant(self.block_size, tf.int64)
        full, rest = divmod(self.num_examples, self.block_size)
        if not full:
            return positions
        place = self._shuffled(tf.constant([full], tf.int64), full, draw=1)[0]
        tail = place * size
        slot = tf.where(positions < tail, positions, positions - rest) // size
        within = tf.where(positions < tail, positions, positions - rest) % size
        # Positions in the tail get an existing slot here; their result is replaced below.
        in_tail = (positions >= tail) & (positions < tail + rest)
        slot = tf.where(in_tail, tf.zeros_like(slot), slot)
        block = self._shuffled(slot, full - 1, draw=0)
        return tf.where(in_tail, full * size + positions - tail, block * size + within)

    def _shuffled(self, values: tf.Tensor, largest: int, draw: int) -> tf.Tensor:
        seed = tf.constant([self.seed, self._draw(draw)], tf.int64)
        return tf.random.experimental.index_shuffle(values, seed=seed, max_index=largest)

    def _draw(self, number: int) -> int:
        """Returns a unique number for each permutation of an epoch: blocks, tail, then windows."""
        windows = -(-self.num_examples // (self.block_size * self.window_blocks))
        return self.epoch * (windows + 2) + number
