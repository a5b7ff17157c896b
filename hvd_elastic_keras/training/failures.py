"""Tells failures that a new membership mends from those of the model's own step."""

from __future__ import annotations

from hvd_elastic_keras.errors import CollectiveFailedError

MAX_UNEXPLAINED = 3
"""So many failures at the same place by the same members are not a matter of membership."""


class UnexplainedFailures:
    """Counts failures in a row that happened at the same place to the same workers."""

    def __init__(self) -> None:
        self._place: tuple[int, tuple[str, ...]] | None = None
        self._count = 0

    def note(
        self,
        progress: int,
        members: tuple[str, ...],
        error: Exception,
        *,
        what: str,
        where: str = "",
        whose: str,
    ) -> None:
        """Notes a failure.

        Args:
          progress: how far the state was.
          members: the workers of the round.
          what, where: what failed, and where if that needs saying, for people.
          whose: where the error probably is.

        Raises:
          CollectiveFailedError: it has failed too often.
        """
        place = (progress, members)
        self._count = self._count + 1 if place == self._place else 1
        self._place = place
        if self._count >= MAX_UNEXPLAINED:
            raise CollectiveFailedError(
                f"{what} failed {self._count} times{where} although no worker was lost: "
                f"{error}. The error is probably in {whose}."
            ) from error
