"""The part of the communicator that membership uses."""

from __future__ import annotations

from typing import Protocol


class Abortable(Protocol):
    """The part of the communicator that membership uses."""

    in_collective: bool
    """Whether the training thread takes a step, or waits with the other workers."""

    def computing(self) -> bool:
        """Whether this worker computes its part of a step, for which the others may wait."""

    def abort(self, through_round: int) -> bool:
        """Makes collectives of old rounds fail. Returns whether to call this again."""
