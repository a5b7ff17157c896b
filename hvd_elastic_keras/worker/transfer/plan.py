"""Who gives which bytes to whom. Pure: all members of a round come to the same plan."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hvd_elastic_keras.worker.transfer.fetcher import Source
from hvd_elastic_keras.worker.transfer.handshake import Part

MOST_SOURCES = 4
"""Of one member: more of them would give no more bytes in a second."""
MOST_FETCHERS = 8
"""Of one holder: a broadcast, in which who has received hands on, is faster from there on."""


class Member(msgspec.Struct, frozen=True):
    """What a member tells all others.

    Attributes:
      is_level: whether it holds the root's state, as far as it knows.
      checksum: of its tensors; None if nobody compares them.
      address: where it gives its tensors, as host and port; None if it does not.
      may_be_late: whether it can take part in a step before it holds the state.
    """

    is_level: bool
    checksum: int | None = None
    address: tuple[str, int] | None = None
    may_be_late: bool = False


class Plan:
    """Who lacks the state, and who gives it.

    Args:
      members: by rank; the first is the root.
      size: bytes of the state.
    """

    def __init__(self, members: Sequence[Member], size: int) -> None:
        root = members[0]
        is_level = [m.is_level and m.checksum == root.checksum for m in members]
        self.behind = [rank for rank, level in enumerate(is_level) if not level]
        self.is_late = bool(self.behind) and all(members[rank].may_be_late for rank in self.behind)
        """Whether the others need not wait until the state is everywhere."""
        self._size = size
        self._addresses = [
            m.address for m, level in zip(members, is_level, strict=True) if level and m.address
        ]

    @property
    def is_direct(self) -> bool:
        """Whether the members fetch; else a broadcast is due."""
        return len(self.behind) <= MOST_FETCHERS * len(self._addresses)

    def num_fetchers(self, address: tuple[str, int] | None) -> int:
        """How many parts are fetched from a holder."""
        sources = [source for rank in self.behind for source in self.sources(rank)]
        return sum(source.address == address for source in sources)

    def sources(self, rank: int) -> list[Source]:
        """From whom a member that is behind fetches, so that each holder has as much to do."""
        count = min(MOST_SOURCES, len(self._addresses))
        first = self.behind.index(rank) * count
        bounds = [self._size * k // count for k in range(count + 1)]
        return [
            Source(self._addresses[(first + k) % len(self._addresses)], Part(*bounds[k : k + 2]))
            for k in range(count)
        ]
