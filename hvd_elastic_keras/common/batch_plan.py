"""Assigns the micro-batches of a global batch to workers. Pure functions of numbers.

Workers compute with these functions. The master uses them in what it tells people.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

MOST_LISTED = 6
"""`describe_shares` lists up to this many shares one by one, and groups more."""


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
    """Returns a rank's share of the micro-batches, split as evenly as whole numbers allow.

    Earlier ranks get more.

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


def shares_of(size: int, num_micro_batches: int) -> list[int]:
    """Returns how many micro-batches each of `size` workers computes, by rank.

    >>> shares_of(3, 8)
    [3, 3, 2]
    """
    shares = [share_of(rank, size, num_micro_batches) for rank in range(size)]
    return [share.num_micro_batches for share in shares]


def successive(shares: Sequence[int]) -> list[Share]:
    """Turns numbers of micro-batches, by rank, into successive ranges.

    >>> successive([3, 2])
    [Share(first=0, last=3), Share(first=3, last=5)]
    """
    ends = [0, *itertools.accumulate(shares)]
    return [Share(first, last) for first, last in itertools.pairwise(ends)]


def describe_shares(shares: Sequence[int]) -> str:
    """Returns shares by rank as text; many workers are grouped as workers x micro-batches.

    >>> describe_shares([3, 3, 2]), describe_shares([3, 3, 3, 3, 3, 3, 2])
    ('3+3+2', '6x3+1x2')
    """
    if len(shares) <= MOST_LISTED:
        return "+".join(str(share) for share in shares)
    groups = [(len(list(group)), share) for share, group in itertools.groupby(shares)]
    return "+".join(f"{workers}x{share}" for workers, share in groups)
