"""Goes through the rounds of a training, from the first to the last.

    until all workers have finished:
        enter       wait for a place
        take part   until all is done, the membership changes or a collective fails
        restore     only after a failure
        leave

`TrainingLoop` (`fit` and `Trainer`) and `ElasticLoop` (`elastic.run`) implement these operations.
A new round mends the failure of a collective, but not one of the model's own step.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Protocol

from hvd_elastic_keras.common.errors import (
    CollectiveFailedError,
    MasterUnreachableError,
    WorkerLeavingError,
)
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.loop.leave_reason import LeaveReason, leave_reason_of

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


log = logging.getLogger(__name__)


class Driven(Protocol):
    """The operations of one worker in its rounds."""

    def enter(self, failure: str) -> Assignment:
        """Waits for a place in the next round.

        Args:
          failure: why the previous round failed; empty if it did not.
        """

    def on_order_to_leave(self, reason: LeaveReason) -> None:
        """Called when there is no place for this worker, or no master. The worker ends next."""

    def take_part(self, place: Assignment) -> bool:
        """Trains in a round. Returns whether all workers have finished.

        Raises:
          CollectiveFailedError: a peer went away, or the round was closed.
        """

    def failed_at(self) -> FailedAt:
        """Returns how far the state is, after a failure."""

    def restore(self, error: CollectiveFailedError) -> None:
        """Goes back to a valid state, after a failure."""

    def leave(self, place: Assignment, *, finished: bool) -> None:
        """Leaves the round, however it has ended."""


def drive(driven: Driven) -> None:
    """Goes from round to round until all workers have finished.

    Raises:
      WorkerLeavingError: this worker has to leave before the end.
      TrainingOverError: the others had finished before this worker had a place.
      MasterUnreachableError: there is no master any more.
      CollectiveFailedError: the same place fails again and again although no worker is lost.
    """
    failures = UnexplainedFailures()
    failure, finished = "", False
    while not finished:
        try:
            place = driven.enter(failure)
        except (WorkerLeavingError, MasterUnreachableError) as error:
            driven.on_order_to_leave(leave_reason_of(error, failure))
            raise
        failure = ""
        try:
            finished = driven.take_part(place)
        except CollectiveFailedError as error:
            failure = str(error)
            log.info("%s", failure)
            failures.note(driven.failed_at(), place.members, error)
            driven.restore(error)
        finally:
            driven.leave(place, finished=finished)
