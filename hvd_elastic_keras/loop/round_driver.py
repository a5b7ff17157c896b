"""Goes through the rounds of a training, from the first to the last.

    until all workers have finished:
        enter       wait for a place
        take part   until all is done, the membership changes or a collective fails
        restore     only after a failure
        leave

`TrainingLoop` (`fit` and `Trainer`) and `ElasticLoop` (`elastic.run`) implement these operations.
"""

from __future__ import annotations

import logging
from typing import Protocol

from hvd_elastic_keras.common.errors import (
    CollectiveFailedError,
    MasterUnreachableError,
    WorkerLeavingError,
)
from hvd_elastic_keras.common.protocol import Assignment
from hvd_elastic_keras.loop.failures import FailedAt, UnexplainedFailures
from hvd_elastic_keras.loop.leave_reason import LeaveReason, leave_reason_of

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
