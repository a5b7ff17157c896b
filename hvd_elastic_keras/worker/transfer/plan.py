"""Plans which member gives which bytes to which. Pure: all members come to the same plan."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hvd_elastic_keras.worker.transfer.fetcher import Source
from hvd_elastic_keras.worker.transfer.handshake import Part

MOST_SOURCES = 4
"""Most sources of one member. More of them would give no more bytes in a second."""
MOST_BEHIND_PER_HOLDER = 8
"""Most members that lack the state, for each member that gives it. With more, a broadcast is
faster: there, receivers pass it on."""


class Member(msgspec.Struct, frozen=True):
    """A member's message to all others.

    Attributes:
      has_root_state: whether the member holds the root's state, as far as it knows.
      checksum: checksum of its tensors; None if checksums are not compared.
      address: host and port at which it gives its tensors; None if it gives none.
      may_be_late: whether it can take part in a step before it holds the state.
    """

    has_root_state: bool
    checksum: int | None = None
    address: tuple[str, int] | None = None
    may_be_late: bool = False


class Plan:
    """The members that lack the state, and the members that give it.

    Args:
      members: the members by rank; the first is the root.
      size: bytes of the state.
    """

    def __init__(self, members: Sequence[Member], size: int) -> None:
        root = members[0]
        has_root_state = [m.has_root_state and m.checksum == root.checksum for m in members]
        self.behind = [rank for rank, level in enumerate(has_root_state) if not level]
        self.is_late = bool(self.behind) and all(members[rank].may_be_late for rank in self.behind)
        """Whether the members that hold the state go on before the others have it."""
        self._size = size
        self._addresses = [
            m.address
            for m, level in zip(members, has_root_state, strict=True)
            if level and m.address
        ]

    @property
    def is_direct(self) -> bool:
        """Whether members fetch the state; if not, it is broadcast."""
        return len(self.behind) <= MOST_BEHIND_PER_HOLDER * len(self._addresses)

    def num_fetchers(self, address: tuple[str, int] | None) -> int:
        """Returns the number of parts that are fetched from a holder."""
        sources = [source for rank in self.behind for source in self.sources(rank)]
        return sum(source.address == address for source in sources)

    def sources(self, rank: int) -> list[Source]:
        """Returns the sources of a member that is behind. All holders get equal work."""
        count = min(MOST_SOURCES, len(self._addresses))
        first = self.behind.index(rank) * count
        bounds = [self._size * k // count for k in range(count + 1)]
        return [
            Source(self._addresses[(first + k) % len(self._addresses)], Part(*bounds[k : k + 2]))
            for k in range(count)
        ]
