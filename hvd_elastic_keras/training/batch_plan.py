"""Which worker computes which micro-batches of a global batch. Pure functions of numbers."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Share:
    """A contiguous range of micro-batches [first, last) of every global batch."""

    first: int
    last: int

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches that the worker sums before the allreduce (its accumulation)."""
        return self.last - self.first


def share_of(rank: int, size: int, num_micro_batches: int) -> Share:
    """Splits the micro-batches as evenly as whole numbers allow, earlier ranks get more.

    >>> [share_of(rank, 3, 8).num_micro_batches for rank in range(3)]
    [3, 3, 2]

    Raises:
      ValueError: `rank` is not in [0, size).
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} was given, expected a value in [0, {size}).")
    base, extra = divmod(num_micro_batches, size)
    first = rank * base + min(rank, extra)
    return Share(first, first + base + (rank < extra))
