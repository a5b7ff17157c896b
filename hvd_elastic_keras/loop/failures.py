"""Distinguishes failures that a new membership mends from failures of the model's own step."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.common.errors import CollectiveFailedError

MAX_UNEXPLAINED = 3
"""Give up after this many failures at the same place of the same members.

Membership is not the cause then."""


@dataclasses.dataclass(frozen=True)
class FailedAt:
    """How far the state was when a round failed.

    Attributes:
      progress: a number that orders states by age.
      what, where: words for the message: the thing that failed, and its place if that is of use.
      whose: words for the message: the code in which the error probably is.
    """

    progress: int
    what: str
    whose: str
    where: str = ""


class UnexplainedFailures:
    """Counts failures in a row that happened at the same place to the same workers."""

    def __init__(self) -> None:
        self._place: tuple[int, tuple[str, ...]] | None = None
        self._count = 0

    def note(self, at: FailedAt, members: tuple[str, ...], error: Exception) -> None:
        """Notes a failure of a round with these members.

        Raises:
          CollectiveFailedError: it has failed too often.
        """
        place = (at.progress, members)
        self._count = self._count + 1 if place == self._place else 1
        self._place = place
        if self._count >= MAX_UNEXPLAINED:
            raise CollectiveFailedError(
                f"{at.what} failed {self._count} times{at.where} although no worker was lost: "
                f"{error}. The error is probably in {at.whose}."
            ) from error
